// Package console serves the pages on which people see the fleet, answer it and travel in time.
//
// It is a client like any other: it asks wake.api and sends commands, and holds nothing that the
// log doesn't. Pages are made here and work without script as far as reading goes; a little script of
// its own keeps them up to date. Whatever an agent wrote is hostile: it reaches a page only as text.
package console
