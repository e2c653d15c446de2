"""What has to hold in every world: functions of a world, named by what they show."""
