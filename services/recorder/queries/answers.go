// Package queries answers questions about what is recorded.
package queries

import "code.wake.dev/wake/services/recorder/archive"

// Answers answers questions about an archive and what is derived from it. Any number
// may ask at the same time.
type Answers struct {
	*archive.Archive

	views   views
	live    live
	figures figures // of runs that go on, or went on when they were asked for
	ended   figures
	courses courses
}

// New returns answers from a.
func New(a *archive.Archive) *Answers { return &Answers{Archive: a} }

// Holding reports whether runs are held in memory, so that [Answers.Changed] has to be
// told.
func (a *Answers) Holding() bool { return a.live.lines > 0 }

// Forget drops what is kept of a run, since it was derived again, or removed.
func (a *Answers) Forget(run string) {
	a.views.dropRun(run)
	a.courses.drop(run)
	a.figures.drop(run)
	a.ended.drop(run)
}

// ForgetLive drops the runs that are held, since it isn't known what was recorded.
func (a *Answers) ForgetLive() {
	a.live.dropAll()
	a.courses.drop("")
	a.figures.drop("")
	a.ended.drop("")
}
