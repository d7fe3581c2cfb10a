// Package timeline turns events into what people read: the lines of a log
// (seeds/004 §2), one-line summaries, and the name of an agent's activity. It is
// pure: no clock, no I/O.
//
// What agents write is hostile. Summaries are safe for a terminal; lines keep
// their text as it came, and the code that shows one passes it through [Sanitize].
package timeline
