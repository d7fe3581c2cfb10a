package alerter

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// How much of an output is looked at, in bytes: its head and, since summaries
// come last, more of its tail.
const (
	maxOutput = 96 << 10
	maxHead   = 32 << 10
)

// report is what the output of a build or of tests says of itself.
type report struct {
	Errors int      // of compilers
	Said   int      // errors, as a summary counts them
	Files  []string // with errors
	Failed int      // tests
	Passed int      // tests
	Names  []string // of failed tests, where no summary counts them
	Made   bool     // make says that a command failed
}

// maxFiles bounds the names that are kept.
const maxFiles = 50

// hasFailure reports whether the output tells of a failure.
func (r report) hasFailure() bool { return r.Errors > 0 || r.Failed > 0 || r.Made }

// hasSuccess reports whether the output tells of success.
func (r report) hasSuccess() bool { return !r.hasFailure() && r.Passed > 0 }

// form is how a tool writes a line.
type form struct {
	pattern *regexp.Regexp
	take    func(r *report, m []string)
}

// forms are those of go, npm, jest, vitest, mocha, pytest, cargo, tsc, compilers
// of C, eslint and make. The first that matches a line counts.
var forms = sync.OnceValue(func() []form {
	return []form{
		{regexp.MustCompile(`^\s*--- FAIL: (\S+)`), func(r *report, m []string) { r.addFailedTest(m[1]) }},
		{regexp.MustCompile(`^\s*--- PASS: \S+`), func(r *report, _ []string) { r.Passed++ }},
		{regexp.MustCompile(`^FAIL\s+(\S+) \[(?:build|setup) failed\]`), func(r *report, m []string) { r.addFailedTest(m[1]) }},
		{regexp.MustCompile(`^Tests:\s+(.*)`), func(r *report, m []string) { r.addTestCounts(m[1]) }},                           // jest
		{regexp.MustCompile(`^\s+Tests\s+(.*\(\d+\))`), func(r *report, m []string) { r.addTestCounts(m[1]) }},                  // vitest
		{regexp.MustCompile(`^=*\s*((?:\d+ \w+,? ?)+)in [\d.:]+\s?s\b`), func(r *report, m []string) { r.addTestCounts(m[1]) }}, // pytest
		{regexp.MustCompile(`^\s+(\d+ (?:passing|failing))\b`), func(r *report, m []string) { r.addTestCounts(m[1]) }},          // mocha
		{regexp.MustCompile(`^test result: \S+\. (.*)`), func(r *report, m []string) { r.addTestCounts(m[1]) }},                 // cargo
		{regexp.MustCompile(`^(\d+ tests?, \d+ failures?)`), func(r *report, m []string) { r.addExampleCounts(m[1]) }},          // mix
		{regexp.MustCompile(`^(\d+ examples?, \d+ failures?)`), func(r *report, m []string) { r.addExampleCounts(m[1]) }},       // rspec
		{regexp.MustCompile(`^(\S+?)(?:\(\d+,\d+\):|:\d+:\d+ -) error TS\d+`), func(r *report, m []string) { r.errorIn(m[1]) }},
		{regexp.MustCompile(`^error TS\d+`), func(r *report, _ []string) { r.errorIn("") }},
		{regexp.MustCompile(`^Found (\d+) errors?\b`), func(r *report, m []string) { r.Said = max(r.Said, parseCount(m[1])) }},
		{regexp.MustCompile(`^error(?:\[E\d+\])?: (?:could not compile|aborting due to|test failed|\d+ targets? failed)`), func(*report, []string) {}},
		{regexp.MustCompile(`^error(?:\[E\d+\])?: `), func(r *report, _ []string) { r.errorIn("") }},
		{regexp.MustCompile(`^\s*--> (\S+?):\d+:\d+`), func(r *report, m []string) { r.addFile(m[1]) }},
		{regexp.MustCompile(`^(?:vet: )?(\S+\.go):\d+:\d+: `), func(r *report, m []string) { r.errorIn(m[1]) }},
		{regexp.MustCompile(`^(\S+?):\d+:(?:\d+:)? (?:fatal )?error: `), func(r *report, m []string) { r.errorIn(m[1]) }},
		{regexp.MustCompile(`^\S+ \d+ problems? \((\d+) errors?, `), func(r *report, m []string) { r.Errors += parseCount(m[1]) }}, // eslint
		{regexp.MustCompile(`^g?make(?:\[\d+\])?: \*\*\* `), func(r *report, _ []string) { r.Made = true }},
	}
})

func parseOutput(output string) report {
	if len(output) > maxOutput {
		output = output[:maxHead] + "\n" + output[len(output)-maxOutput+maxHead:]
	}
	var r report
	for l := range strings.Lines(timeline.Sanitize(output)) {
		l = strings.TrimRight(l, " \t\r\n")
		for _, f := range forms() {
			if m := f.pattern.FindStringSubmatch(l); m != nil {
				f.take(&r, m)
				break
			}
		}
	}
	r.Failed, r.Errors = max(r.Failed, len(r.Names)), max(r.Errors, r.Said)
	return r
}

func parseCount(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}

// addFailedTest notes a test that failed. Of a test and its parts only the test counts.
func (r *report) addFailedTest(name string) {
	name, _, _ = strings.Cut(name, "/")
	if !slices.Contains(r.Names, name) && len(r.Names) < maxFiles {
		r.Names = append(r.Names, name)
	}
}

func (r *report) errorIn(file string) {
	r.Errors++
	r.addFile(file)
}

func (r *report) addFile(file string) {
	file = path.Base(strings.ReplaceAll(file, `\`, "/"))
	if file != "." && !slices.Contains(r.Files, file) && len(r.Files) < maxFiles {
		r.Files = append(r.Files, file)
	}
}

var ( // the parts of a summary
	partFailed = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(\d+) (?:fail(?:ed|ing|ures?)|errors?)\b`) })
	partPassed = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(\d+) pass(?:ed|ing)\b`) })
	partAll    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(\d+) (?:tests?|examples?)\b`) })
)

func (r *report) addTestCounts(summary string) {
	r.Failed += sumMatches(partFailed(), summary)
	r.Passed += sumMatches(partPassed(), summary)
}

// addExampleCounts reads a summary that counts all tests and those that failed.
func (r *report) addExampleCounts(summary string) {
	failed := sumMatches(partFailed(), summary)
	r.Failed += failed
	r.Passed += max(sumMatches(partAll(), summary)-failed, 0)
}

func sumMatches(part *regexp.Regexp, summary string) int {
	sum := 0
	for _, m := range part.FindAllStringSubmatch(summary, -1) {
		sum += parseCount(m[1])
	}
	return sum
}

// errorText is "12 errors in bridge.ts", "3 errors in 2 files", "0 errors".
func (r report) errorText() string {
	s := formatCount(int64(r.Errors), "error")
	switch {
	case r.Errors == 0 || len(r.Files) == 0:
		return s
	case len(r.Files) == 1:
		return s + " in " + nameLine(r.Files[0])
	}
	return fmt.Sprintf("%s in %d files", s, len(r.Files))
}

// failureText is "2 failed, 13 passed (TestA, TestB)".
func (r report) failureText() string {
	s := fmt.Sprintf("%d failed", r.Failed)
	if r.Passed > 0 {
		s += fmt.Sprintf(", %d passed", r.Passed)
	}
	if len(r.Names) == 0 {
		return s
	}
	names := strings.Join(r.Names[:min(len(r.Names), 3)], ", ")
	if len(r.Names) > 3 {
		names += ", …"
	}
	return s + " (" + timeline.Line(names, maxError) + ")"
}

// hasOutcome reports whether a call was made and came to an end of its own.
func hasOutcome(p *wire.AgentTool) bool {
	return !p.Denied && p.Error != wire.CallInterrupted && !isRejection(p.Error) && !neverBegan(p.Error)
}

// isRejection recognises the words for a refusal by a human.
func isRejection(problem string) bool {
	return strings.HasPrefix(problem, "The user doesn't want to proceed with this tool use")
}

// neverBegan recognises the words of Claude Code for a call that it hasn't made, since another one of the
// same message had failed.
func neverBegan(problem string) bool {
	return strings.HasPrefix(strings.TrimPrefix(problem, "<tool_use_error>"), "Sibling tool call errored")
}

// unknownTool is the tool of a result if no event has its call.
const unknownTool = "unknown"

func outputOf(p *wire.AgentTool) string {
	if s, ok := p.ToolOutput.Text(); ok {
		return s
	}
	var all []string
	list, _ := p.ToolOutput.Any().([]any)
	for _, x := range list {
		block, _ := x.(map[string]any)
		if s, ok := block["text"].(string); ok {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return p.ToolOutput.TextAt("stdout") + p.ToolOutput.TextAt("output")
	}
	return strings.Join(all, "\n")
}
