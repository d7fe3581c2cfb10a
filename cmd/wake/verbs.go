package main

// The verbs, by what they do. A group has nothing of its own: what verbs share is the app's.
type (
	viewVerbs  struct{ *app } // show runs and what they have left
	orderVerbs struct{ *app } // steer runs, and answer them
	runVerbs   struct{ *app } // begin runs
	fileVerbs  struct{ *app } // bring runs in and out, and check what is stored
	alertVerbs struct{ *app } // show alerts, and try their rules
	hostVerbs  struct{ *app } // run servers and services, and look after them
)
