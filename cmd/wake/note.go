package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/internal/timeline"
)

// verbLogger returns the logger of a verb: notes for a person, or JSON lines with --json.
func (a *app) verbLogger(level slog.Level) *slog.Logger {
	if a.json {
		return service.NewLogger(a.errOut, level)
	}
	return slog.New(noteHandler{w: a.errOut, level: level})
}

// noteHandler writes records as notes, a line each, the error last: "large fields are left out (run r1): no answer". Groups aren't
// told apart.
type noteHandler struct {
	w     io.Writer
	level slog.Level
	attrs []slog.Attr
}

// Enabled implements [slog.Handler].
func (h noteHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level }

// WithGroup implements [slog.Handler].
func (h noteHandler) WithGroup(string) slog.Handler { return h }

// WithAttrs implements [slog.Handler].
func (h noteHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.attrs = slices.Concat(h.attrs, attrs)
	return h
}

// Handle implements [slog.Handler].
func (h noteHandler) Handle(_ context.Context, r slog.Record) error {
	attrs := slices.Clone(h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		attrs = append(attrs, a)
		return true
	})
	said, about, reason := r.Message, "", ""
	for _, a := range attrs {
		if a.Key == "error" {
			reason = ": " + a.Value.String()
			continue
		}
		if about != "" {
			about += ", "
		}
		about += a.Key + " " + a.Value.String()
	}
	if about != "" {
		about = " (" + about + ")"
	}
	_, err := fmt.Fprintln(h.w, timeline.Line(said+about+reason, maxMessage))
	return err
}
