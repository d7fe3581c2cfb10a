// Package intake brings a runner its work.
//
// The intake takes requests for runs and offers of nodes from the queue and hands them to
// owners and workers, adopts runs that have lost their owner, puts commands on record that
// are no owner's, and passes the alerts of child runs on to their parents.
package intake
