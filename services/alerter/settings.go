package alerter

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Settings say when the detectors find something. [Defaults] are those that need
// no file; what is decoded into them replaces what it names. A threshold of zero,
// or an empty list of them, switches its signal off.
type Settings struct {
	Retry     Retry     `yaml:"retry"`
	Loop      Loop      `yaml:"failureLoop"`
	Progress  Progress  `yaml:"progress"`
	Stuck     Stuck     `yaml:"stuck"`
	Budget    Budget    `yaml:"budget"`
	Milestone Milestone `yaml:"milestone"`
	Build     Build     `yaml:"build"`
	Commit    Commit    `yaml:"commit"`
	Context   Context   `yaml:"context"`
	Spawn     Spawn     `yaml:"spawn"`
	System    System    `yaml:"system"`
}

// Retry is about calls of a model that failed and are made again.
type Retry struct {
	From int `yaml:"from"` // the failed try from which on it is told, once in a row; default 2
}

// Loop is about tools that fail again and again.
type Loop struct {
	Failures int `yaml:"failures"` // in a row; default 3
}

// Progress is about agents that work and get nowhere. What is told is told again at four times as many.
type Progress struct {
	Calls  int `yaml:"calls"`  // equal calls with equal answers, while nothing else is changed; default 10
	Flips  int `yaml:"flips"`  // times that an edit is taken back, or made again; default 3
	Errors int `yaml:"errors"` // failures in other words, with at most 15 calls in between; default 5
}

// Stuck is about agents that do nothing although it is their turn.
type Stuck struct {
	After    time.Duration `yaml:"after"`    // silence that is a warning; default 5m
	Critical time.Duration `yaml:"critical"` // silence that is critical; default 15m
	CoolDown time.Duration `yaml:"coolDown"` // no other warning about an agent follows within it; default 30m
	Tool     time.Duration `yaml:"tool"`     // how long a single call may take without a sign of life; default 30m
}

// Budget is about money, in US dollars.
type Budget struct {
	Run    []float64 `yaml:"run"`    // spent by a run without a limit of its own; default 1, 5, 10, 25
	Shares []float64 `yaml:"shares"` // of the run's own budget, 0 to 1; default 0.5, 0.8, 1
	Day    []float64 `yaml:"day"`    // spent by all runs on a day (UTC); default 25, 50, 100
}

// Milestone is about the items of an agent's list.
type Milestone struct {
	Gather time.Duration `yaml:"gather"` // new items within it are told together; default 5s
}

// Build is about commands that build and test.
type Build struct {
	Tools    []string  `yaml:"tools"`    // tools with a command as input
	Commands []Command `yaml:"commands"` // the first that matches counts; tests count before builds
}

// Command recognises a command that builds or tests.
type Command struct {
	Name    string `yaml:"name"`
	Test    bool   `yaml:"test"`    // it tests; else it builds
	Pattern string `yaml:"pattern"` // RE2, for the beginning of a simple command, its variables and wrappers taken off
}

// Commit is about commits to git.
type Commit struct {
	Window time.Duration `yaml:"window"` // commits within it are told together; default 30s
}

// Context is about how full the context window of an agent is.
type Context struct {
	Percent []int            `yaml:"percent"` // default 50, 75, 90
	Window  int64            `yaml:"window"`  // tokens of a model if no agent has told its window; default 200000
	Windows map[string]int64 `yaml:"windows"` // the same by model
}

// Spawn is about sub-agents.
type Spawn struct {
	Tools  []string      `yaml:"tools"`  // that start one
	Gather time.Duration `yaml:"gather"` // those within it are told together; default 5s
}

// System is about wake itself. A signal that persists is told again every Repeat.
type System struct {
	Storage []int         `yaml:"storage"` // percent of the bytes that the stream of events may have; default 70, 80, 90
	Lag     time.Duration `yaml:"lag"`     // age of the oldest event that isn't recorded; default 5m
	Repeat  time.Duration `yaml:"repeat"`  // default 1h
}

// Defaults returns the settings that need no file.
func Defaults() Settings {
	return Settings{
		Retry:     Retry{From: 2},
		Loop:      Loop{Failures: 3},
		Progress:  Progress{Calls: 10, Flips: 3, Errors: 5},
		Stuck:     Stuck{After: 5 * time.Minute, Critical: 15 * time.Minute, CoolDown: 30 * time.Minute, Tool: 30 * time.Minute},
		Budget:    Budget{Run: []float64{1, 5, 10, 25}, Shares: []float64{0.5, 0.8, 1}, Day: []float64{25, 50, 100}},
		Milestone: Milestone{Gather: 5 * time.Second},
		Build: Build{
			Tools:    []string{"Bash", "bash", "shell", "local_shell", "PowerShell", "run_shell_command"},
			Commands: commonCommands(),
		},
		Commit:  Commit{Window: 30 * time.Second},
		Context: Context{Percent: []int{50, 75, 90}, Window: 200_000},
		Spawn:   Spawn{Tools: []string{"Task", "Agent", "dispatch_agent", "create_agent", "AgentRunner"}, Gather: 5 * time.Second},
		System:  System{Storage: []int{70, 80, 90}, Lag: 5 * time.Minute, Repeat: time.Hour},
	}
}

func commonCommands() []Command {
	return []Command{
		{"go test", true, `go\s+(?:\S+=\S+\s+)*test\b|gotestsum\b`},
		{"npm test", true, `(?:npm|pnpm|yarn|bun)\s+(?:-\S+\s+)*(?:run\s+)?(?:t|tst|test)(?:[:\s]|$)`},
		{"jest", true, `(?:yarn\s+|pnpm\s+(?:exec\s+)?)?jest\b`},
		{"vitest", true, `(?:yarn\s+|pnpm\s+(?:exec\s+)?)?vitest\b`},
		{"mocha", true, `mocha\b`},
		{"pytest", true, `(?:python[\d.]*\s+-m\s+)?(?:pytest|py\.test|unittest)\b|tox\b|nox\b`},
		{"cargo test", true, `cargo\s+(?:\+\S+\s+)?(?:test|nextest)\b`},
		{"make test", true, `g?make\s+(?:\S+\s+)*?(?:test|check)\S*(?:\s|$)`},
		{"gradle test", true, `(?:\./)?gradlew?\s+(?:\S+\s+)*?\S*[tT]est\b|mvnw?\s+(?:\S+\s+)*?(?:test|verify)\b`},
		{"mix test", true, `mix\s+test\b`},
		{"rspec", true, `(?:bundle\s+exec\s+)?rspec\b|rake\s+test\b`},
		{"dotnet test", true, `dotnet\s+test\b`},
		{"swift test", true, `swift\s+test\b`},
		{"ctest", true, `ctest\b`},
		{"go build", false, `go\s+(?:build|vet|install)\b`},
		{"npm build", false, `(?:npm|pnpm|yarn|bun)\s+(?:-\S+\s+)*(?:run\s+)?(?:build|compile|typecheck|type-check)(?:[:\s]|$)`},
		{"tsc", false, `tsc\b|vue-tsc\b`},
		{"cargo build", false, `cargo\s+(?:\+\S+\s+)?(?:build|check|clippy)\b`},
		{"make", false, `g?make(?:\s|$)|ninja\b|cmake\s+--build\b`},
		{"gradle", false, `(?:\./)?gradlew?\s+(?:\S+\s+)*?(?:build|assemble|compile\S*)\b|mvnw?\s+(?:\S+\s+)*?(?:compile|package|install)\b`},
		{"mix compile", false, `mix\s+compile\b`},
		{"dotnet build", false, `dotnet\s+build\b`},
		{"swift build", false, `swift\s+build\b|xcodebuild\b`},
	}
}

// Kinds are the kinds of alerts that there are.
func (s Settings) Kinds() []string { return slices.Clone(kinds) }

// Validate reports all that is wrong with the settings, each problem with the
// path of its field.
func (s Settings) Validate() error {
	var problems []error
	wrong := func(field, problem string) { problems = append(problems, fmt.Errorf("%s: %s", field, problem)) }
	for field, d := range map[string]time.Duration{
		"stuck.after": s.Stuck.After, "stuck.critical": s.Stuck.Critical, "stuck.coolDown": s.Stuck.CoolDown, "stuck.tool": s.Stuck.Tool,
		"milestone.gather": s.Milestone.Gather, "commit.window": s.Commit.Window, "spawn.gather": s.Spawn.Gather,
		"system.lag": s.System.Lag, "system.repeat": s.System.Repeat,
	} {
		if d < 0 {
			wrong(field, "must not be negative")
		}
	}
	for field, n := range map[string]int64{
		"retry.from": int64(s.Retry.From), "failureLoop.failures": int64(s.Loop.Failures), "context.window": s.Context.Window,
		"progress.calls": int64(s.Progress.Calls), "progress.flips": int64(s.Progress.Flips), "progress.errors": int64(s.Progress.Errors),
	} {
		if n < 0 {
			wrong(field, "must not be negative")
		}
	}
	for field, list := range map[string][]float64{"budget.run": s.Budget.Run, "budget.shares": s.Budget.Shares, "budget.day": s.Budget.Day} {
		if !isAscending(list) {
			wrong(field, "must be positive and ascending")
		}
	}
	if n := len(s.Budget.Shares); n > 0 && s.Budget.Shares[n-1] > 1 {
		wrong("budget.shares", "must be shares of the budget, 1 at most, such as 0.8")
	}
	for field, list := range map[string][]int{"context.percent": s.Context.Percent, "system.storage": s.System.Storage} {
		if !isAscending(list) || len(list) > 0 && list[len(list)-1] > 100 {
			wrong(field, "must be ascending percentages")
		}
	}
	if told := len(s.System.Storage) > 0 || s.System.Lag > 0; told && s.System.Repeat < time.Second {
		wrong("system.repeat", "must be a second at least")
	}
	for i, c := range s.Build.Commands {
		if _, err := regexp.Compile(c.Pattern); err != nil || c.Pattern == "" || c.Name == "" {
			wrong(fmt.Sprintf("build.commands[%d]", i), "needs a name and a pattern that is a regular expression")
		}
	}
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(problems...)
}

func isAscending[N int | float64](list []N) bool {
	for i, x := range list {
		if x <= 0 || i > 0 && x <= list[i-1] {
			return false
		}
	}
	return true
}

// limits are settings that are ready for use.
type limits struct {
	Settings
	commands []command
}

// command is a [Command] with its pattern.
type command struct {
	Command
	pattern *regexp.Regexp
}

// compileLimits compiles the patterns. One that is none matches nothing.
func (s Settings) compileLimits() *limits {
	l := &limits{Settings: s}
	for _, test := range []bool{true, false} {
		for _, c := range s.Build.Commands {
			if pattern, err := regexp.Compile(`^(?:` + c.Pattern + `)`); err == nil && c.Test == test {
				l.commands = append(l.commands, command{c, pattern})
			}
		}
	}
	return l
}
