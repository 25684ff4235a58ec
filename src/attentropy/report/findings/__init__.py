"""What each finding means, with a picture of a healthy and of an ill head."""
