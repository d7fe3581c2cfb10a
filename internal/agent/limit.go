package agent

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"code.wake.dev/wake/pkg/wire"
)

// LimitReset returns when a limit is over that a model's API or an agent's program tells of in words, such as "You've hit your
// limit · resets 3pm (Europe/Berlin)", "usage limit reached|1749924000" or "try again in 2 hours 5 minutes". The time now is
// when it was said, and gives the zone of times that name none. It reports false if the words don't say when.
func LimitReset(text string, now time.Time) (time.Time, bool) {
	if m := limitStamp().FindStringSubmatch(text); m != nil {
		seconds, err := strconv.ParseInt(m[1], 10, 64)
		return time.Unix(seconds, 0), err == nil
	}
	at := limitWords().FindStringIndex(text)
	if at == nil {
		return time.Time{}, false
	}
	text = text[at[1]:]
	if m := limitSpan().FindString(text); m != "" {
		return addSpan(m, now)
	}
	return clockTime(text, now)
}

var (
	limitStamp = lazyRegexp(`(?i)limit reached\|(\d{10})\b`)
	limitWords = lazyRegexp(`(?i)\b(?:resets?|try again)\b(?:\s+(?:at|on|in|after))?\s+`)
	limitSpan  = lazyRegexp(`(?i)^(?:\d{1,6}(?:\.\d{1,6})?\s*(?:milliseconds?|ms|days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s)\b?[\s,]*(?:and\s+)?)+`)
	spanPart   = lazyRegexp(`(?i)(\d+(?:\.\d+)?)\s*([a-z]+)`)
	limitClock = lazyRegexp(`(?i)^(?:([a-z]{3})[a-z]* (\d{1,2})(?:st|nd|rd|th)?,?(?: (\d{4}),?)?(?: at)? )?(\d{1,2})(?::(\d{2}))? ?([ap])m\b(?: \(([\w+/-]+)\))?`)
)

// lazyRegexp returns what compiles an expression when it is first needed: each start of the program, keepers included, would pay.
func lazyRegexp(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// spanUnits are what spans are told in, by the beginnings of their names, longer ones first.
var spanUnits = []struct {
	name string
	unit time.Duration
}{
	{"mil", time.Millisecond}, {"ms", time.Millisecond}, {"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second},
}

// addSpan adds a span such as "2 days 3 hours" or "15h48m53s" to a time.
func addSpan(span string, now time.Time) (time.Time, bool) {
	var sum time.Duration
	for _, m := range spanPart().FindAllStringSubmatch(span, -1) {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return time.Time{}, false
		}
		for _, u := range spanUnits {
			if strings.HasPrefix(strings.ToLower(m[2]), u.name) {
				sum += time.Duration(n * float64(u.unit))
				break
			}
		}
	}
	return now.Add(sum), true
}

// limitSlack is how long ago a limit may be over that is still told: clocks differ, and what is told leaves seconds out.
const limitSlack = 10 * time.Minute

// clockTime returns the next time that the hands of a clock, and a calendar if it names a day, show what the text begins with.
func clockTime(text string, now time.Time) (time.Time, bool) {
	m := limitClock().FindStringSubmatch(text)
	if m == nil {
		return time.Time{}, false
	}
	if m[7] != "" {
		zone, err := time.LoadLocation(m[7])
		if err != nil {
			return time.Time{}, false // hours off is worse than not knowing
		}
		now = now.In(zone)
	}
	hour, _ := strconv.Atoi(m[4])
	minute, _ := strconv.Atoi(m[5]) // "" is 0
	if hour < 1 || hour > 12 || minute > 59 {
		return time.Time{}, false
	}
	hour %= 12
	if strings.EqualFold(m[6], "p") {
		hour += 12
	}
	year, month, day := now.Date()
	if m[1] == "" {
		at := time.Date(year, month, day, hour, minute, 0, 0, now.Location())
		if now.Sub(at) > limitSlack {
			at = time.Date(year, month, day+1, hour, minute, 0, 0, now.Location())
		}
		return at, true
	}
	named, err := time.Parse("Jan", strings.ToUpper(m[1][:1])+strings.ToLower(m[1][1:]))
	if err != nil {
		return time.Time{}, false
	}
	day, _ = strconv.Atoi(m[2])
	at := time.Date(year, named.Month(), day, hour, minute, 0, 0, now.Location())
	if m[3] != "" {
		year, _ = strconv.Atoi(m[3])
		return time.Date(year, named.Month(), day, hour, minute, 0, 0, now.Location()), true
	}
	if now.Sub(at) > 180*24*time.Hour { // of the next year
		at = time.Date(year+1, named.Month(), day, hour, minute, 0, 0, now.Location())
	}
	return at, true
}

// The error types of a model's API that no try again helps against, as Claude Code calls
// them.
const (
	ErrorAuthentication = "authentication_failed"
	ErrorBilling        = "billing_error"
	ErrorInvalidRequest = "invalid_request"
	ErrorModelNotFound  = "model_not_found"
	ErrorServer         = "server_error" // which may pass
)

// statusOverloaded is Anthropic's status for too much load.
const statusOverloaded = 529

// APIErrorType returns the error type of a failure of a model's API: by the API's own name
// for it, such as overloaded_error, if that is one that is known, else by the HTTP status.
// All kinds of agents call it so.
func APIErrorType(status int, name string) string {
	switch name {
	case "authentication_error", "permission_error":
		return ErrorAuthentication
	case "billing_error":
		return ErrorBilling
	case "invalid_request_error", "request_too_large":
		return ErrorInvalidRequest
	case "not_found_error":
		return ErrorModelNotFound
	case "rate_limit_error":
		return wire.ErrorRateLimit
	case "overloaded_error":
		return wire.ErrorOverloaded
	case "api_error", "timeout_error":
		return ErrorServer
	}
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return ErrorAuthentication
	case status == http.StatusTooManyRequests:
		return wire.ErrorRateLimit
	case status == statusOverloaded:
		return wire.ErrorOverloaded
	case status >= http.StatusInternalServerError:
		return ErrorServer
	case status >= http.StatusBadRequest:
		return ErrorInvalidRequest
	}
	return wire.ErrorExecution
}
