package alerter

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"code.wake.dev/wake/internal/timeline"
)

// All that alerts say, in English. What agents, tools and people wrote goes
// through [nameLine], [clipText] or [timeline.Line] before it comes here.
const (
	textPrefix = "[subagent:%s] %s"

	textCompleted     = "✅ Completed"
	textCompletedWith = "✅ Completed: %s"

	textAPIError   = "❌ API error: %s"
	textError      = "❌ Error: %s"
	textDied       = "❌ Process died: %s"
	textRetry      = " (retry %s)"
	textGaveUp     = " (given up after retry %s)"
	textNodeFailed = "❌ Node %s failed: %s"
	textRunFailed  = "❌ Run failed: %s"
	textBlocked    = "❌ Permission blocked: %s"

	textStuck     = "⚠️ No progress for %s (last: %s)"
	textStuckTool = "⚠️ %s has been running for %s (last: %s)"

	textSpent    = "💰 %s spent (budget: %s)"
	textUsed     = "💰 %s used (budget: %d)"
	textShared   = "💰 Shared budget %s spent"
	textSpentDay = "💰 %s spent by all runs on %s (budget: %s)"

	textTaskDone    = "📋 [%d/%d] %s ✅"
	textTask        = "📋 [%d/%d] %s"
	textTaskCreated = "📋 [%d/%d] Created: %s"
	textTasks       = "📋 [%d/%d] Created %d tasks: %s"

	textBuildPassed = "🔨 Build passed ✅ (%s)"
	textBuildFailed = "🔨 Build failed: %s"
	textTestsPassed = "🔨 Tests passed ✅ (%s)"
	textTestsFailed = "🔨 Tests failed: %s"
	textSuspect     = " — suspect: the output says %s"

	textCommitted   = "📝 Committed: %s"
	textCommittedOn = "📝 Committed on %s"
	textCommits     = "📝 %d commits: %s"
	textManyCommits = "📝 %d commits (latest: %s)"

	textContext = "🧠 Context at %d%% — may compact soon"

	textSpawned     = "🔄 Spawned %s"
	textSpawnedTeam = "🔄 Spawned %s (team: %s)"
	textSpawnedWhat = "🔄 Spawned %s (%s)"

	textLoop = "🔁 %d consecutive %s failures — possibly stuck"

	textCircle  = "🔁 No progress: %s, %d times with the same answer in %s%s"
	textFlips   = "🔁 No progress: %s, back and forth %d times in %s%s"
	textReturns = "🔁 No progress: %s, failed %d times for the same reason in %s%s"

	textMessage = "💬 %s"

	textPaused     = "⏸️ Paused, needs a decision: %s"
	textQuestion   = "❓ Waiting for an answer: %s"
	textAsked      = "❓ Waiting for an answer: %s (wake reply, call %s)"
	textPermission = "❓ Waiting for permission: %s (wake approve|deny, call %s)"

	textLimit  = "⏳ Waits until %s, when a limit of its model is over: %s"
	textMirror = "🪞 The store of the session lacks a part of it: %s"

	textStorage = "💾 Event storage is %d%% full (%s of %s)"
	textTrouble = "🩺 The %s doesn't work (%s): %s"
	textLag     = "🐌 The recorder is %s behind (%s)"
	textLetter  = "📮 The recorder has set aside what isn't an event: %s"
	textGap     = "🕳️ %s of %s missing in the log (%s)"
)

// Limits of texts in characters: an alert costs its reader's context.
const (
	maxLabel   = 80
	maxName    = 80
	maxItem    = 100
	maxMessage = 300
	maxError   = 200
	maxResult  = 1500
)

// maxLine is the size of a line in bytes: it costs its reader 500 tokens at most,
// if a token is four bytes.
const maxLine = 2000

// clipText shortens a text to a number of bytes.
func clipText(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	const dots = "…"
	s = s[:limit-len(dots)]
	for len(s) > 0 {
		if r, size := utf8.DecodeLastRuneInString(s); r != utf8.RuneError || size > 1 {
			break
		}
		s = s[:len(s)-1]
	}
	return s + dots
}

// nameLine is a name that fits into a line.
func nameLine(name string) string { return timeline.Line(name, maxName) }

// quoteText is a text in quotation marks.
func quoteText(s string) string { return `"` + s + `"` }

// formatCount is "3 events", "1 event".
func formatCount(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.FormatInt(n, 10) + " " + what + "s"
}

// formatSpan is a duration in its largest whole unit up to minutes: "5 minutes".
func formatSpan(d time.Duration) string {
	if d < time.Minute {
		return formatCount(int64(d/time.Second), "second")
	}
	return formatCount(int64(d/time.Minute), "minute")
}

// formatSize is "8.2 GiB".
func formatSize(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	x, i := float64(n), 0
	for ; x >= 1024 && i < len(units)-1; i++ {
		x /= 1024
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", x, units[i])
}

// firstLine is the first line of a text that has something on it.
func firstLine(s string) string {
	for l := range strings.Lines(s) {
		if l = strings.TrimSpace(l); l != "" {
			return l
		}
	}
	return ""
}
