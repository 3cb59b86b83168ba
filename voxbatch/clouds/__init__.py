"""The ways in which a run is started elsewhere, or by an upload: `voxbatch submit` and `voxbatch listen`."""
