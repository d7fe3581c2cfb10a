package keeper

// SpeakOther has this process speak another protocol than the keepers that it starts, until it is called again.
func SpeakOther() { protocol = 3 - protocol }
