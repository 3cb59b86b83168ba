"""The layout of OUT: checkpoint parts, merged outputs, leases."""
