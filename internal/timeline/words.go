package timeline

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"code.wake.dev/wake/pkg/wire"
)

// joinNonEmpty joins what isn't empty.
func joinNonEmpty(sep string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), sep)
}

// formatCount is "3 events lost" for (3, "event", "lost"), and "" for none.
func formatCount(n int64, what, then string) string {
	switch n {
	case 0:
		return ""
	case 1:
		return joinNonEmpty(" ", "1", what, then)
	}
	return joinNonEmpty(" ", strconv.FormatInt(n, 10), what+"s", then)
}

// InBrackets is a text in brackets, behind a space; "" for none.
func InBrackets(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

func forRunText(run string) string {
	if run == "" {
		return ""
	}
	return " (for " + run + ")"
}

func byText(who string) string {
	if who == "" {
		return ""
	}
	return " by " + who
}

func choicesText(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return "[" + strings.Join(list, " | ") + "]"
}

func decisionText(d wire.Decision) string {
	switch d {
	case wire.DecisionAllow:
		return "given"
	case wire.DecisionDeny:
		return "denied"
	default:
		return string(d)
	}
}

// formatDollars is "$0.34"; small amounts have four digits. It is "" if unknown.
func formatDollars(cost *float64) string {
	switch {
	case cost == nil:
		return ""
	case *cost > 0 && *cost < 0.01:
		return fmt.Sprintf("$%.4f", *cost)
	}
	return fmt.Sprintf("$%.2f", *cost)
}

// Cost is a cost and what is known of it, see [wire.CostReported]; "" if there is none.
func Cost(usd float64, basis string) string {
	text := ""
	if usd > 0 {
		text = formatDollars(&usd)
	}
	switch {
	case basis == wire.CostPartly && text == "":
		return "unknown"
	case basis == wire.CostPartly, basis == wire.CostComputed:
		return text + " (" + basis + ")"
	}
	return text
}

// formatTokens is "980" or "150k".
func formatTokens(n int64) string {
	if n < 1000 {
		return strconv.FormatInt(n, 10)
	}
	return fmt.Sprintf("%dk", (n+500)/1000)
}

// durationNote is " (2.1s)", or "" for a duration of zero.
func durationNote(ms int64) string { return InBrackets(formatDuration(ms)) }

// formatDuration is how long something took: "12ms", "2.1s", "3m05s", "1h20m".
func formatDuration(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case ms <= 0:
		return ""
	case ms < 100:
		return fmt.Sprintf("%dms", ms)
	case ms < 59_950:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		d = d.Round(time.Second)
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}

// Span is a duration in the coarse form of seeds/004: "30s", "12m", "1h5m",
// "2d3h". Negative ones are "0s".
func Span(ms int64) string {
	s := max(ms, 0) / 1000
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm", s/60)
	case s < 86400:
		return twoUnits(s/3600, "h", s%3600/60, "m")
	}
	return twoUnits(s/86400, "d", s%86400/3600, "h")
}

// Count is a number in at most four characters before its unit: "999", "1.2k", "454k", "12.5M", "1.0G".
func Count(n int64) string {
	switch x := float64(n); {
	case n < 1000:
		return strconv.FormatInt(n, 10)
	case n < 9_950:
		return fmt.Sprintf("%.1fk", x/1e3)
	case n < 999_500:
		return fmt.Sprintf("%.0fk", x/1e3)
	case n < 999_950_000:
		return fmt.Sprintf("%.1fM", x/1e6)
	default:
		return fmt.Sprintf("%.1fG", x/1e9)
	}
}

// Behind says that an answer of the recorder lacks events; see [wire.Lag].
func Behind(events uint64) string {
	return fmt.Sprintf("the recorder has %d events to catch up with, which aren't in this: ask again in a while", events)
}

// Took is how long something took, short times precisely: "120 ms", "4.2 s", then as [Span].
func Took(ms int64) string {
	switch {
	case ms < 1000:
		return fmt.Sprintf("%d ms", max(ms, 0))
	case ms < 60_000:
		return fmt.Sprintf("%.1f s", float64(ms)/1000)
	}
	return Span(ms)
}

func twoUnits(a int64, unit string, b int64, smaller string) string {
	if b == 0 {
		return fmt.Sprintf("%d%s", a, unit)
	}
	return fmt.Sprintf("%d%s%d%s", a, unit, b, smaller)
}
