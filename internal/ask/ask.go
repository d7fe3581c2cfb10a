// Package ask is what agents ask people: the questions of the tool AskUserQuestion, the
// answers to them, and the list of all that waits for a person in a run. It does no I/O and
// knows no clock.
package ask

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// Tool is the tool by which an agent asks a person and waits for the answer. Its input has
// questions; the answers are added to it, as [Answer] does, by the user who approves the call.
const Tool = "AskUserQuestion"

// Schema is the JSON Schema of the input of [Tool].
const Schema = `{"type":"object","properties":{"questions":{"type":"array","minItems":1,"maxItems":4,"items":{"type":"object","properties":{` +
	`"question":{"type":"string","description":"The whole question"},` +
	`"header":{"type":"string","description":"What it is about, in a word or two"},` +
	`"options":{"type":"array","minItems":2,"maxItems":4,"description":"Answers to choose from; another one can be given too","items":{"type":"object",` +
	`"properties":{"label":{"type":"string"},"description":{"type":"string"}},"required":["label"]}},` +
	`"multiSelect":{"type":"boolean","description":"several options can be chosen"}},"required":["question"]}}},"required":["questions"]}`

// Questions returns the questions of a call's input: at least one, each with a text of its
// own.
func Questions(input wire.Raw) ([]wire.AskQuestion, error) {
	var in struct {
		Questions []wire.AskQuestion `json:"questions"`
	}
	if mayAsk(input) {
		b, err := wire.AppendJSON(nil, input)
		if err != nil || json.Unmarshal(b, &in) != nil {
			return nil, errors.New("input: questions must be a list of {question, header, options: [{label, description}], multiSelect}")
		}
	}
	if len(in.Questions) == 0 {
		return nil, errors.New("input: questions is empty")
	}
	seen := map[string]bool{}
	for i, q := range in.Questions {
		switch {
		case strings.TrimSpace(q.Question) == "":
			return nil, fmt.Errorf("input: question %d is empty", i+1)
		case seen[q.Question]:
			return nil, fmt.Errorf("input: question %d is asked twice", i+1)
		}
		seen[q.Question] = true
	}
	return in.Questions, nil
}

// mayAsk reports whether an input can have a field that JSON takes for questions, in capitals, too: most calls are of other
// tools, and reading their inputs as JSON takes as long as all else that is derived from them.
func mayAsk(input wire.Raw) bool {
	for rest := []byte(input); ; rest = rest[1:] {
		i := bytes.IndexAny(rest, "qQ")
		if i < 0 {
			return false
		}
		if rest = rest[i:]; len(rest) > len("ue") && strings.EqualFold(string(rest[:len("que")]), "que") {
			return true
		}
	}
}

// Line is questions in a line: "Tabs or spaces? (Tabs, Spaces)". They are as their agent
// wrote them.
func Line(questions []wire.AskQuestion) string {
	lines := make([]string, len(questions))
	for i, q := range questions {
		lines[i] = q.Question
		if len(q.Options) > 0 {
			lines[i] += " (" + strings.Join(Labels(q), ", ") + ")"
		}
	}
	return strings.Join(lines, "; ")
}

// Labels are the options of a question.
func Labels(q wire.AskQuestion) []string {
	labels := make([]string, len(q.Options))
	for i, o := range q.Options {
		labels[i] = o.Label
	}
	return labels
}

// answersKey is the field of the input that has the answers, by question.
const answersKey = "answers"

// Answer returns a call's input, all of it as its agent wrote it, with the answers to its questions. A text answers all of
// them; an object has an answer for each, by its text, its header or its number from 1. An
// answer is a text, or a list of them. One that names options, by label or number, chooses
// them, several with commas in between where that is allowed; any other is taken as it is.
func Answer(input, answer wire.Raw) (wire.Raw, error) {
	questions, err := Questions(input)
	if err != nil {
		return nil, err
	}
	answers := map[string]string{}
	if object, ok := answer.Any().(map[string]any); ok {
		for key, value := range object {
			q := findQuestion(questions, key)
			if q == nil {
				return nil, fmt.Errorf("there is no question %q; they are %s", key, questionNames(questions))
			}
			if answers[q.Question], err = chooseAnswer(*q, value); err != nil {
				return nil, err
			}
		}
	} else {
		for _, q := range questions {
			if answers[q.Question], err = chooseAnswer(q, answer.Any()); err != nil {
				return nil, err
			}
		}
	}
	if len(answers) == 0 {
		return nil, errors.New("it has no answer")
	}
	answered := map[string]any{}
	for name, value := range input.Fields() {
		answered[string(name)] = value
	}
	answered[answersKey] = answers
	return wire.Marshal(answered)
}

// Chosen makes an answer of options: each names one of the only question, or is
// QUESTION=OPTION, with several options separated by commas.
func Chosen(questions []wire.AskQuestion, options []string) (wire.Raw, error) {
	chosen := map[string][]string{}
	for _, option := range options {
		key, value, named := strings.Cut(option, "=")
		q := findQuestion(questions, strings.TrimSpace(key))
		switch {
		case len(questions) == 1 && (!named || q == nil || matchLabel(questions[0], option) != ""):
			q, value = &questions[0], option
		case !named:
			return nil, fmt.Errorf("%q: say QUESTION=OPTION; the questions are %s", option, questionNames(questions))
		case q == nil:
			return nil, fmt.Errorf("there is no question %q; they are %s", key, questionNames(questions))
		}
		for _, o := range splitOptions(*q, value) {
			l := matchLabel(*q, o)
			if l == "" {
				return nil, fmt.Errorf("%q is no option of %q: %s", o, q.Question, strings.Join(Labels(*q), ", "))
			}
			chosen[q.Question] = append(chosen[q.Question], l)
		}
	}
	return wire.Marshal(chosen)
}

// splitOptions returns the options that a text names: it is one, unless several can be chosen.
func splitOptions(q wire.AskQuestion, said string) []string {
	if matchLabel(q, said) != "" || !q.MultiSelect {
		return []string{said}
	}
	return strings.Split(said, ",")
}

// findQuestion returns the question that a key means, or nil.
func findQuestion(questions []wire.AskQuestion, key string) *wire.AskQuestion {
	for i, q := range questions {
		if q.Question == key || q.Header != "" && strings.EqualFold(q.Header, key) || strconv.Itoa(i+1) == key {
			return &questions[i]
		}
	}
	return nil
}

func questionNames(questions []wire.AskQuestion) string {
	all := make([]string, len(questions))
	for i, q := range questions {
		if all[i] = strconv.Quote(q.Header); q.Header == "" {
			all[i] = strconv.Itoa(i + 1)
		}
	}
	return strings.Join(all, ", ")
}

// chooseAnswer returns the answer to a question: the labels that it names, or what it says.
func chooseAnswer(q wire.AskQuestion, answer any) (string, error) {
	var said []string
	switch answer := answer.(type) {
	case string:
		said = splitOptions(q, answer)
		if !slices.ContainsFunc(said, func(s string) bool { return matchLabel(q, s) == "" }) {
			break
		}
		said = []string{answer}
	case []any:
		for _, a := range answer {
			s, ok := a.(string)
			if !ok {
				return "", fmt.Errorf("the answer to %q is a list of something else than texts", q.Question)
			}
			said = append(said, s)
		}
		if len(said) > 1 && !q.MultiSelect {
			return "", fmt.Errorf("only one answer to %q can be chosen", q.Question)
		}
	case bool, int64, uint64, float64:
		said = []string{fmt.Sprint(answer)}
	default:
		return "", fmt.Errorf("the answer to %q is no text", q.Question)
	}
	for i, s := range said {
		if said[i] = strings.TrimSpace(s); said[i] == "" {
			return "", fmt.Errorf("the answer to %q is empty", q.Question)
		}
		if l := matchLabel(q, s); l != "" {
			said[i] = l
		}
	}
	if len(said) == 0 {
		return "", fmt.Errorf("the answer to %q is empty", q.Question)
	}
	return strings.Join(said, ", "), nil
}

// matchLabel returns the label of the option that a text names, "" if it names none.
func matchLabel(q wire.AskQuestion, said string) string {
	said = strings.TrimSpace(said)
	for _, o := range q.Options {
		if strings.EqualFold(strings.TrimSpace(o.Label), said) {
			return o.Label
		}
	}
	if n, err := strconv.Atoi(said); err == nil && n >= 1 && n <= len(q.Options) {
		return q.Options[n-1].Label
	}
	return ""
}

// Answered reports whether a call's input has answers.
func Answered(input wire.Raw) bool {
	answers, _ := input.Get(answersKey).Any().(map[string]any)
	return len(answers) > 0
}

// Result is what the agent is told when its questions are answered.
func Result(input wire.Raw) string {
	questions, err := Questions(input)
	if err != nil || !Answered(input) {
		return "The questions have no answer."
	}
	var lines []string
	for _, q := range questions {
		line := fmt.Sprintf("%q was left open", q.Question)
		if text, ok := input.Get(answersKey).Get(q.Question).Text(); ok {
			line = fmt.Sprintf("%q: %q", q.Question, text)
		}
		lines = append(lines, line)
	}
	return "The questions were answered. " + strings.Join(lines, "; ")
}
