package main

import (
	"fmt"
	"math"
	"strconv"
	"text/tabwriter"

	"code.wake.dev/wake/internal/bench"
)

// printBench prints one table. Figures are medians; in brackets the least and
// the greatest of the rounds.
func (a hostVerbs) printBench(r benchReport) error {
	server := "nats-server " + r.Server
	if r.Embedded {
		server += ", embedded"
	}
	if _, err := fmt.Fprintf(a.out, "wake %s, %s, %s, %d CPUs, %s, replicas: %d\n\n", r.Wake, r.Go, r.Platform, r.CPUs, server, r.Replicas); err != nil {
		return err
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "STEP\tWHAT\tFIGURE\tAGAINST\tITS FIGURE\tRATIO\tGOAL") // Flush returns the error
	for _, row := range r.Rows {
		_, _ = fmt.Fprintln(w, benchLine(row))
	}
	return w.Flush()
}

func benchLine(r bench.Row) string {
	line := fmt.Sprintf("%s\t%s\t%s\t", r.Group, r.Name, spreadText(r.Value, r.Unit))
	if r.Ratio == nil {
		return line
	}
	line += fmt.Sprintf("%s\t%s\t%s\t", r.Against, spreadText(*r.Baseline, r.Unit), spreadText(*r.Ratio, "×"))
	if r.Goal == nil {
		return line
	}
	goal := "≥ " + figureText(r.Goal.AtLeast)
	if r.Goal.AtMost > 0 {
		goal = "≤ " + figureText(r.Goal.AtMost)
	}
	if r.Goal.Met {
		return line + goal + " met"
	}
	return line + goal + " MISSED"
}

func spreadText(s bench.Spread, unit string) string {
	text := figureText(s.Median) + unit
	if s.Low < s.High {
		text += fmt.Sprintf(" (%s–%s)", figureText(s.Low), figureText(s.High))
	}
	return text
}

// figureText writes three digits that count.
func figureText(x float64) string {
	switch digits := math.Floor(math.Log10(math.Abs(x))); {
	case x == 0:
		return "0"
	case digits >= 6:
		return strconv.FormatFloat(x/1e6, 'f', 1, 64) + "M"
	case digits >= 4:
		return strconv.FormatFloat(x/1e3, 'f', 1, 64) + "k"
	default:
		return strconv.FormatFloat(x, 'f', max(0, min(4, 2-int(digits))), 64)
	}
}
