package timeline

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"wake/pkg/wire"
)

// text returns the text of a value, or "" if it is none.
func text(v wire.Raw) string {
	s, _ := v.Text()
	return s
}

// valueText returns a string as it is and everything else as JSON.
func valueText(v wire.Raw) string {
	if s, ok := v.Text(); ok {
		return s
	}
	if len(v) == 0 {
		return ""
	}
	b, err := wire.AppendJSON(nil, v)
	if err != nil {
		return ""
	}
	return string(b)
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// join joins what isn't empty.
func join(sep string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), sep)
}

// counted is "3 events lost" for (3, "event", "lost"), and "" for none.
func counted(n int64, what, then string) string {
	switch n {
	case 0:
		return ""
	case 1:
		return join(" ", "1", what, then)
	}
	return join(" ", strconv.FormatInt(n, 10), what+"s", then)
}

func bracketed(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

func from(run string) string {
	if run == "" {
		return ""
	}
	return " (for " + run + ")"
}

func by(who string) string {
	if who == "" {
		return ""
	}
	return " by " + who
}

func choices(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return "[" + strings.Join(list, " | ") + "]"
}

func decided(d wire.Decision) string {
	switch d {
	case wire.DecisionAllow:
		return "given"
	case wire.DecisionDeny:
		return "denied"
	default:
		return string(d)
	}
}

// dollars is "$0.34"; small amounts have four digits. It is "" if unknown.
func dollars(cost *float64) string {
	switch {
	case cost == nil:
		return ""
	case *cost > 0 && *cost < 0.01:
		return fmt.Sprintf("$%.4f", *cost)
	}
	return fmt.Sprintf("$%.2f", *cost)
}

// tokens is "980" or "150k".
func tokens(n int64) string {
	if n < 1000 {
		return strconv.FormatInt(n, 10)
	}
	return fmt.Sprintf("%dk", (n+500)/1000)
}

// took is " (2.1s)", or "" for a duration of zero.
func took(ms int64) string { return bracketed(duration(ms)) }

// duration is how long something took: "12ms", "2.1s", "3m05s", "1h20m".
func duration(ms int64) string {
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
		return two(s/3600, "h", s%3600/60, "m")
	}
	return two(s/86400, "d", s%86400/3600, "h")
}

func two(a int64, unit string, b int64, smaller string) string {
	if b == 0 {
		return fmt.Sprintf("%d%s", a, unit)
	}
	return fmt.Sprintf("%d%s%d%s", a, unit, b, smaller)
}
