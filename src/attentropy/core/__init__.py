"""What attention is made of, without computing any of it: calls, masks, scales, states."""
