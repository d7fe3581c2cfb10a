package keeper

import "os"

// Each program that can open keepers is one itself, if it is started as one: it becomes
// a keeper here, and ends; see package guard for when that is.
func init() { //nolint:gochecknoinits // main is too late: a keeper would pay for every library of the program
	if len(os.Args) > 1 && os.Args[1] == keeperVerb {
		os.Exit(serveMain())
	}
}

// keeperVerb is the argument with which the program is a keeper.
const keeperVerb = "keeper"
