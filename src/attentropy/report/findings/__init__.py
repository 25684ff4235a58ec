"""What each finding means, with a picture of a healthy head and of an affected one."""
