"""The clients of remote places: Cloud Storage, S3, the Hugging Face hub, web servers. `storage.connect` names them."""
