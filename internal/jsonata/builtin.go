package jsonata

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/blues/jsonata-go/jlib"
	"github.com/blues/jsonata-go/jtypes"
)

// builtin is a function of the language.
type builtin struct {
	params   []param
	variadic bool                  // the last parameter may be there more than once
	total    bool                  // it is called for nothing, too; others come to nothing then
	context  func(args []any) bool // whether the context is the first argument
	call     func(m *machine, args []any) (any, error)
}

// hasNoArgs is the context of most functions: they take it if they have no argument.
func hasNoArgs(args []any) bool { return len(args) == 0 }

// lacksFirst tells from the arguments that the first parameter has none, and takes the context.
func lacksFirst(kinds ...param) func([]any) bool {
	return func(args []any) bool {
		if len(args) == 0 || len(args) > len(kinds) {
			return false
		}
		for i, v := range args {
			if isAbsent(v) || !kinds[i].acceptsValue(v) {
				return false
			}
		}
		return true
	}
}

// language is the functions that there are.
var language = sync.OnceValue(func() map[string]*builtin {
	s, n, f, p, x := param{kind: 's'}, param{kind: 'n'}, param{kind: 'f'}, param{kind: 'p'}, param{kind: 'x'}
	sOpt, nOpt, fOpt, xOpt := param{'s', true}, param{'n', true}, param{'f', true}, param{'x', true}
	r := param{kind: 'r'}
	of := func(call func(*machine, []any) (any, error), params ...param) *builtin {
		return &builtin{params: params, call: call}
	}
	bared := func(b *builtin) *builtin { b.context = hasNoArgs; return b }
	total := func(b *builtin) *builtin { b.total = true; return b }
	with := func(b *builtin, context func([]any) bool) *builtin { b.context = context; return b }
	one := func(args []any) bool { return len(args) == 1 }
	text := func(edit func(string) string) *builtin {
		return bared(of(func(m *machine, a []any) (any, error) { return m.countText(edit(a[0].(string))), nil }, s))
	}
	number := func(edit func(float64) float64) *builtin {
		return bared(of(func(_ *machine, a []any) (any, error) { return edit(a[0].(float64)), nil }, n))
	}
	all := map[string]*builtin{
		"string":          bared(of(func(m *machine, a []any) (any, error) { return m.textOf(a[0]), nil }, x)),
		"length":          bared(of(func(m *machine, a []any) (any, error) { return float64(m.countRunes(a[0].(string))), nil }, s)),
		"substring":       with(of((*machine).substringOf, s, n, nOpt), lacksFirst(n, n)),
		"substringBefore": with(of((*machine).substringBefore, s, s), lacksFirst(s)),
		"substringAfter":  with(of((*machine).substringAfter, s, s), lacksFirst(s)),
		"uppercase":       text(strings.ToUpper),
		"lowercase":       text(strings.ToLower),
		"trim":            text(func(s string) string { return strings.Join(strings.Fields(s), " ") }),
		"pad":             with(of((*machine).padText, s, n, sOpt), lacksFirst(n, s)),
		"contains":        with(of((*machine).containsMatch, s, p), one),
		"split":           with(of((*machine).splitText, s, p, nOpt), lacksFirst(p, n)),
		"join":            of((*machine).joinTexts, x, sOpt),
		"match":           with(of((*machine).describeMatches, s, r, nOpt), lacksFirst(r, n)),
		"replace":         with(of((*machine).replaceMatches, s, p, p, nOpt), func(a []any) bool { return len(a) > 1 && lacksFirst(p, p, n)(a) }),
		"formatNumber":    with(of((*machine).formatNumber, n, s, xOpt), lacksFirst(s, x)),
		"formatBase":      bared(of((*machine).formatBase, n, nOpt)),
		"base64encode":    text(func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }),
		"base64decode": bared(of(func(m *machine, a []any) (any, error) {
			b, err := base64.StdEncoding.DecodeString(a[0].(string))
			return m.countText(string(b)), err
		}, s)),
		"number":   bared(of((*machine).toNumber, param{kind: 'b'})),
		"abs":      number(math.Abs),
		"floor":    number(math.Floor),
		"ceil":     number(math.Ceil),
		"round":    bared(of((*machine).roundNumber, n, nOpt)),
		"power":    with(of((*machine).powerOf, n, n), one),
		"sqrt":     bared(of((*machine).squareRoot, n)),
		"sum":      of(makeAggregate(func(a, b float64) float64 { return a + b }, 0.0), x),
		"max":      of(makeAggregate(math.Max, nothing{}), x),
		"min":      of(makeAggregate(math.Min, nothing{}), x),
		"average":  of((*machine).averageOf, x),
		"boolean":  bared(of(func(m *machine, a []any) (any, error) { return m.isTrue(a[0]), nil }, x)),
		"not":      total(bared(of(func(m *machine, a []any) (any, error) { return !m.isTrue(a[0]), nil }, x))),
		"exists":   total(of(func(_ *machine, a []any) (any, error) { return !isAbsent(a[0]), nil }, x)),
		"count":    total(of(func(_ *machine, a []any) (any, error) { return float64(len(elementsOf(a[0]))), nil }, x)),
		"distinct": of((*machine).distinctItems, x),
		"reverse":  of((*machine).reverseItems, x),
		"sort":     of((*machine).sortItems, x, fOpt),
		"zip":      total(&builtin{params: []param{x}, variadic: true, call: (*machine).zipItems}),
		"append":   total(of((*machine).appendItems, x, x)),
		"map":      of((*machine).mapItems, x, f),
		"filter":   of((*machine).filterItems, x, f),
		"reduce":   of((*machine).reduceItems, x, f, xOpt),
		"single":   of((*machine).singleItem, x, f),
		"each":     with(of((*machine).eachField, x, f), one),
		"sift":     with(of((*machine).siftFields, x, f), one),
		"keys":     bared(of((*machine).fieldNames, x)),
		"lookup":   of(func(m *machine, a []any) (any, error) { return m.fieldOf(a[1].(string), a[0]), nil }, x, s),
		"merge":    of((*machine).mergeObjects, x),
		"fromMillis": bared(of(func(m *machine, a []any) (any, error) {
			return m.formatTime(int64(a[0].(float64)), a[1:])
		}, n, sOpt, sOpt)),
		"toMillis": bared(of((*machine).toMillis, s, sOpt, sOpt)),
		"now":      of(func(m *machine, a []any) (any, error) { return m.formatTime(m.Now, a) }, sOpt, sOpt),
		"millis":   of(func(m *machine, _ []any) (any, error) { return float64(m.Now), nil }),
		"type":     bared(of(func(_ *machine, a []any) (any, error) { return typeOf(a[0]), nil }, x)),
		"error":    total(of(func(_ *machine, a []any) (any, error) { return nil, errors.New(a[0].(string)) }, s)),
	}
	for name, edit := range map[string]func(string) (string, error){
		"decodeUrl": unescapeURL, "decodeUrlComponent": unescapeURL,
		"encodeUrl": escaperOf(plainURL), "encodeUrlComponent": escaperOf(plainComponent),
	} {
		all[name] = bared(of(func(m *machine, a []any) (any, error) {
			out, err := edit(a[0].(string))
			return m.countText(out), err
		}, s))
	}
	all["now"].total = true
	return all
})

// What stays as it is in a URL, and in a part of one, beside letters and digits; see encodeURI and encodeURIComponent of ECMAScript.
const (
	plainComponent = "-_.!~*'()"
	plainURL       = plainComponent + ";/?:@&=+$,#"
)

// escaperOf returns what spells characters for a URL, but for those that stay.
func escaperOf(plain string) func(string) (string, error) {
	return func(s string) (string, error) {
		var b strings.Builder
		for i := range len(s) {
			c := s[i]
			switch {
			case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte(plain, c) >= 0:
				b.WriteByte(c)
			default:
				fmt.Fprintf(&b, "%%%02X", c)
			}
		}
		return b.String(), nil
	}
}

// unescapeURL is the reverse of it. A plus is one.
func unescapeURL(s string) (string, error) {
	var b strings.Builder
	for rest := s; rest != ""; {
		plain, code, found := strings.Cut(rest, "%")
		b.WriteString(plain)
		if !found {
			break
		}
		c, err := strconv.ParseUint(code[:min(2, len(code))], 16, 8)
		if err != nil || len(code) < 2 {
			return "", fmt.Errorf("malformed URL: %q", "%"+code[:min(2, len(code))])
		}
		b.WriteByte(byte(c))
		rest = code[2:]
	}
	if !utf8.ValidString(b.String()) {
		return "", errors.New("malformed URL: it isn't UTF-8")
	}
	return b.String(), nil
}

// countText counts a new text.
func (m *machine) countText(s string) string {
	m.countBytes(len(s))
	return s
}

func (m *machine) countRunes(s string) int {
	m.countSteps(len(s) >> 6)
	return utf8.RuneCountInString(s)
}

// cutRunes takes a text apart behind its first n characters.
func cutRunes(s string, n int) (before, after string) {
	for i := range s {
		if n == 0 {
			return s[:i], s[i:]
		}
		n--
	}
	return s, ""
}

// integerOf is a number that counts something; too large ones are large.
func integerOf(v any) int {
	x, _ := v.(float64)
	return int(max(min(math.Trunc(x), 1e15), -1e15))
}

func (m *machine) substringOf(a []any) (any, error) {
	s, start := a[0].(string), integerOf(a[1])
	size := m.countRunes(s)
	length := size
	if !isAbsent(a[2]) {
		length = integerOf(a[2])
	}
	if start < 0 {
		start = max(start+size, 0)
	}
	if length <= 0 || start >= size {
		return "", nil
	}
	_, s = cutRunes(s, start)
	s, _ = cutRunes(s, length)
	return s, nil
}

func (m *machine) substringBefore(a []any) (any, error) {
	s := a[0].(string)
	m.countSteps(len(s) >> 6)
	before, _, _ := strings.Cut(s, a[1].(string))
	return before, nil
}

func (m *machine) substringAfter(a []any) (any, error) {
	s := a[0].(string)
	m.countSteps(len(s) >> 6)
	if _, after, found := strings.Cut(s, a[1].(string)); found {
		return after, nil
	}
	return s, nil
}

func (m *machine) padText(a []any) (any, error) {
	s, width := a[0].(string), integerOf(a[1])
	fill, _ := a[2].(string)
	fill = cmp.Or(fill, " ")
	missing := max(width, -width) - m.countRunes(s)
	if missing <= 0 {
		return s, nil
	}
	times := missing/utf8.RuneCountInString(fill) + 1
	m.countBytes(len(s))
	m.countBytes(min(times, maxBytes+1) * min(len(fill), maxBytes))
	padding, _ := cutRunes(strings.Repeat(fill, times), missing)
	if width < 0 {
		return padding + s, nil
	}
	return s + padding, nil
}

func (m *machine) joinTexts(a []any) (any, error) {
	if s, ok := a[0].(string); ok {
		return s, nil
	}
	texts, ok := typedItems[string](a[0])
	if !ok {
		return nil, errors.New("function join takes an array of strings")
	}
	separator, _ := a[1].(string)
	for _, s := range texts {
		m.countBytes(len(s) + len(separator) + 16)
	}
	return strings.Join(texts, separator), nil
}

// checkPicture refuses pictures that would make long texts.
func checkPicture(v any) error {
	s, _ := v.(string)
	digits := 0
	for _, r := range s {
		if digits++; r < '0' || r > '9' {
			digits = 0
		}
		if digits > 4 {
			break
		}
	}
	if len(s) > 256 || digits > 4 {
		return errors.New("the picture is too long")
	}
	return nil
}

func (m *machine) formatNumber(a []any) (any, error) {
	if err := checkPicture(a[1]); err != nil {
		return nil, err
	}
	m.countSteps(100)
	var options jtypes.OptionalValue
	if !isAbsent(a[2]) {
		options = jtypes.NewOptionalValue(reflect.ValueOf(a[2]))
	}
	out, err := jlib.FormatNumber(a[0].(float64), a[1].(string), options)
	return m.countText(out), err
}

// formatTime writes a time as a picture wants it, in a zone.
func (m *machine) formatTime(ms int64, a []any) (any, error) {
	if err := checkPicture(a[0]); err != nil {
		return nil, err
	}
	m.countSteps(100)
	out, err := jlib.FromMillis(ms, optionalString(a[0]), optionalString(a[1]))
	return m.countText(out), err
}

func (m *machine) toMillis(a []any) (any, error) {
	if err := checkPicture(a[1]); err != nil {
		return nil, err
	}
	m.countSteps(200 + len(a[0].(string))>>4)
	ms, err := jlib.ToMillis(a[0].(string), optionalString(a[1]), optionalString(a[2]))
	return float64(ms), err
}

func optionalString(v any) jtypes.OptionalString {
	if s, ok := v.(string); ok {
		return jtypes.NewOptionalString(s)
	}
	return jtypes.OptionalString{}
}

func (m *machine) toNumber(a []any) (any, error) {
	switch v := a[0].(type) {
	case bool:
		if v {
			return 1.0, nil
		}
		return 0.0, nil
	case string:
		if x, err := strconv.ParseFloat(v, 64); err == nil && isNumber(v) {
			return x, nil
		}
		return nil, fmt.Errorf("unable to cast %.100q to a number", v)
	}
	return a[0], nil
}

// isNumber reports whether s is a number as JSON writes it: no hexadecimals, no infinity.
func isNumber(s string) bool {
	return strings.Trim(s, "0123456789+-.eE") == "" && !strings.HasPrefix(s, "+") &&
		!strings.HasPrefix(strings.TrimPrefix(s, "-"), ".") && !strings.HasSuffix(s, ".") && !strings.ContainsAny(s, "_xX")
}

func (m *machine) roundNumber(a []any) (any, error) {
	x, places := a[0].(float64), jtypes.OptionalInt{Int: integerOf(a[1])}
	return jlib.Round(x, places), nil
}

func (m *machine) powerOf(a []any) (any, error) {
	x := math.Pow(a[0].(float64), a[1].(float64))
	if math.IsInf(x, 0) || math.IsNaN(x) {
		return nil, errors.New("the power function has resulted in a value that cannot be represented as a JSON number")
	}
	return x, nil
}

func (m *machine) squareRoot(a []any) (any, error) {
	x := a[0].(float64)
	if x < 0 {
		return nil, errors.New("the sqrt function cannot be applied to a negative number")
	}
	return math.Sqrt(x), nil
}

func (m *machine) formatBase(a []any) (any, error) {
	base := 10
	if x, ok := a[1].(float64); ok {
		base = int(math.RoundToEven(x))
	}
	if base < 2 || base > 36 {
		return nil, errors.New("the second argument to formatBase must be between 2 and 36")
	}
	return strconv.FormatInt(int64(math.RoundToEven(a[0].(float64))), base), nil
}

// numbersOf are those of a list, or of a single one.
func (m *machine) numbersOf(v any) ([]float64, error) {
	if x, ok := v.(float64); ok {
		return []float64{x}, nil
	}
	list, ok := typedItems[float64](v)
	if !ok {
		return nil, errors.New("cannot aggregate a value that is no number, or no array of numbers")
	}
	m.countSteps(len(list))
	m.countBytes(8 * len(list))
	return list, nil
}

// makeAggregate makes one number of many; empty is what none come to.
func makeAggregate(join func(a, b float64) float64, empty any) func(*machine, []any) (any, error) {
	return func(m *machine, a []any) (any, error) {
		list, err := m.numbersOf(a[0])
		if err != nil || len(list) == 0 {
			return empty, err
		}
		out := list[0]
		for _, x := range list[1:] {
			out = join(out, x)
		}
		return checkFinite(out)
	}
}

func checkFinite(x float64) (any, error) {
	if math.IsInf(x, 0) || math.IsNaN(x) {
		return nil, errors.New("the result is out of range")
	}
	return x, nil
}

func (m *machine) averageOf(a []any) (any, error) {
	list, err := m.numbersOf(a[0])
	if err != nil || len(list) == 0 {
		return nothing{}, err
	}
	sum := 0.0
	for _, x := range list {
		sum += x
	}
	return checkFinite(sum / float64(len(list)))
}

// distinctItems compares by value, at the price of writing each item.
func (m *machine) distinctItems(a []any) (any, error) {
	list, ok := a[0].([]any)
	if !ok {
		return a[0], nil
	}
	seen := map[string]bool{}
	out := []any{}
	for _, item := range list {
		key := string(m.appendJSON(nil, item, 0))
		if !seen[key] {
			seen[key] = true
			m.countBytes(64 + len(key))
			out = append(out, item)
		}
	}
	return out, nil
}

func (m *machine) reverseItems(a []any) (any, error) {
	list := slices.Clone(elementsOf(a[0]))
	m.countBytes(16 * len(list))
	m.countSteps(len(list))
	slices.Reverse(list)
	return list, nil
}

func (m *machine) appendItems(a []any) (any, error) {
	switch {
	case isAbsent(a[0]):
		return a[1], nil
	case isAbsent(a[1]):
		return a[0], nil
	}
	x, y := elementsOf(a[0]), elementsOf(a[1])
	m.countBytes(16 * (len(x) + len(y)))
	return slices.Concat(x, y), nil
}

func (m *machine) zipItems(a []any) (any, error) {
	size := math.MaxInt
	for i, v := range a {
		if isAbsent(v) {
			return []any{}, nil
		}
		a[i] = elementsOf(v)
		size = min(size, len(elementsOf(v)))
	}
	m.countBytes(16 * size * (len(a) + 2))
	out := make([]any, size)
	for i := range out {
		row := make([]any, len(a))
		for j := range row {
			row[j] = a[j].([]any)[i]
		}
		out[i] = row
	}
	return out, nil
}

// sortItems orders numbers or texts, or anything by a function that tells whether two change places.
func (m *machine) sortItems(a []any) (any, error) {
	list, ok := a[0].([]any)
	if !ok {
		return []any{a[0]}, nil
	}
	m.countBytes(16 * len(list))
	if f, ok := a[1].(*function); ok {
		return m.mergeSort(list, f)
	}
	for _, item := range list {
		if kindOf(item) == 0 || kindOf(item) != kindOf(list[0]) {
			return nil, errors.New("argument 1 of function sort must be an array of strings or numbers")
		}
	}
	out := slices.Clone(list)
	slices.SortStableFunc(out, func(x, y any) int {
		m.countSteps(1)
		return m.compareValues(x, y)
	})
	return out, nil
}

func (m *machine) mergeSort(list []any, f *function) ([]any, error) {
	if len(list) < 2 {
		return list, nil
	}
	left, err := m.mergeSort(list[:len(list)/2], f)
	if err != nil {
		return nil, err
	}
	right, err := m.mergeSort(list[len(list)/2:], f)
	if err != nil {
		return nil, err
	}
	m.countBytes(16 * len(list))
	out := make([]any, 0, len(list))
	for len(left) > 0 && len(right) > 0 {
		v, err := m.callFunction(f, []any{left[0], right[0]}, nothing{})
		if err != nil {
			return nil, err
		}
		swap, ok := v.(bool)
		if !ok {
			return nil, errors.New("argument 2 of function sort must be a function that returns a boolean")
		}
		if swap {
			out, right = append(out, right[0]), right[1:]
		} else {
			out, left = append(out, left[0]), left[1:]
		}
	}
	return append(append(out, left...), right...), nil
}

func (m *machine) mapItems(a []any) (any, error) {
	list, out := elementsOf(a[0]), []any{}
	for i, item := range list {
		v, err := m.callEach(a[1].(*function), item, float64(i), list)
		if err != nil {
			return nil, err
		}
		if !isAbsent(v) {
			m.countBytes(16)
			out = append(out, v)
		}
	}
	return out, nil
}

func (m *machine) filterItems(a []any) (any, error) { return m.chooseItems(a[0], a[1].(*function)) }

// chooseItems are the items for which a function is true.
func (m *machine) chooseItems(v any, f *function) ([]any, error) {
	list, out := elementsOf(v), []any{}
	for i, item := range list {
		v, err := m.callEach(f, item, float64(i), list)
		if err != nil {
			return nil, err
		}
		if m.isTrue(v) {
			m.countBytes(16)
			out = append(out, item)
		}
	}
	return out, nil
}

func (m *machine) singleItem(a []any) (any, error) {
	list, err := m.chooseItems(a[0], a[1].(*function))
	if err != nil {
		return nil, err
	}
	if len(list) != 1 {
		return nil, fmt.Errorf("number of matching values returned by single() must be 1, got: %d", len(list))
	}
	return list[0], nil
}

func (m *machine) reduceItems(a []any) (any, error) {
	f := a[1].(*function)
	if f.paramCount() != 2 {
		return nil, errors.New(`second argument of function "reduce" must be a function that takes two arguments`)
	}
	list, out := elementsOf(a[0]), a[2]
	if isAbsent(out) && len(list) > 0 {
		out, list = list[0], list[1:]
	}
	for _, item := range list {
		var err error
		if out, err = m.callFunction(f, []any{out, item}, nothing{}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// fieldsOf are the names of an object in their order, for a function that is called for each.
func fieldsOf(v any, f *function) (map[string]any, []string, error) {
	object, ok := v.(map[string]any)
	if !ok {
		return nil, nil, errors.New("argument must be an object")
	}
	if n := f.paramCount(); n < 1 || n > 3 {
		return nil, nil, errors.New("function must take 1, 2 or 3 arguments")
	}
	return object, slices.Sorted(maps.Keys(object)), nil
}

func (m *machine) eachField(a []any) (any, error) {
	object, names, err := fieldsOf(a[0], a[1].(*function))
	if err != nil {
		return nil, err
	}
	out := []any{}
	for _, name := range names {
		v, err := m.callEach(a[1].(*function), object[name], name, object)
		if err != nil {
			return nil, err
		}
		if !isAbsent(v) {
			m.countBytes(16)
			out = append(out, v)
		}
	}
	return out, nil
}

func (m *machine) siftFields(a []any) (any, error) {
	object, names, err := fieldsOf(a[0], a[1].(*function))
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	for _, name := range names {
		v, err := m.callEach(a[1].(*function), object[name], name, object)
		if err != nil {
			return nil, err
		}
		if m.isTrue(v) {
			m.countBytes(48)
			out[name] = object[name]
		}
	}
	if len(out) == 0 {
		return nothing{}, nil
	}
	return out, nil
}

// fieldNames are the names of the fields of an object, or of all objects of a list.
func (m *machine) fieldNames(a []any) (any, error) {
	out, seen := []any{}, map[string]bool{}
	for _, item := range elementsOf(a[0]) {
		object, _ := item.(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(object)) {
			m.countSteps(1)
			if !seen[name] {
				seen[name] = true
				m.countBytes(64)
				out = append(out, name)
			}
		}
	}
	return unwrapSequence(out), nil
}

func (m *machine) mergeObjects(a []any) (any, error) {
	out := map[string]any{}
	for _, item := range elementsOf(a[0]) {
		object, ok := item.(map[string]any)
		if !ok {
			return nil, errors.New("argument must be an object or an array of objects")
		}
		m.countSteps(len(object))
		m.countBytes(48 * len(object))
		maps.Copy(out, object)
	}
	return out, nil
}

func typeOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case float64:
		return "number"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	}
	return "function"
}
