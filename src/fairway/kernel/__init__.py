"""What every part stands on, and the contract of a part."""
