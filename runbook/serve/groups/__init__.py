"""Groups: inventory files with a launch, `DATA/groups/NAME.yml`, changed from pages without losing anybody's work."""
