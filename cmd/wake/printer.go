package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"code.wake.dev/wake/internal/timeline"
)

// printer writes lines until one fails.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printLine(format string, args ...any) {
	if p.err == nil {
		text := timeline.Sanitize(fmt.Sprintf(format, args...))
		_, p.err = fmt.Fprintln(p.w, strings.ReplaceAll(text, "\n", " "))
	}
}

func (p *printer) printTable(t table) {
	if err := t.flush(); p.err == nil {
		p.err = err
	}
}

// printFacts writes those facts that there are.
func (p *printer) printFacts(facts [][2]string) {
	for _, f := range facts {
		if f[1] != "" {
			p.printLine("%-10s%s", f[0], timeline.Line(f[1], 400))
		}
	}
}

// table lines columns up. Cells are made safe for a terminal.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer, columns ...string) table {
	t := table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	t.addRow(columns...)
	return t
}

// maxCell bounds a cell in characters.
const maxCell = 60

func (t table) addRow(cells ...string) {
	for i, cell := range cells {
		cells[i] = cmp.Or(timeline.Line(cell, maxCell), "-")
	}
	_, _ = fmt.Fprintln(t.w, strings.Join(cells, "\t")) // flush returns the error
}

func (t table) flush() error { return t.w.Flush() }
