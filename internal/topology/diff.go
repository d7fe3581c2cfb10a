package topology

import (
	"fmt"
	"reflect"
	"strings"
)

// Change is a setting that is not what it shall be.
type Change struct {
	Field string `json:"field"` // as NATS calls it
	Old   string `json:"old"`
	New   string `json:"new"`
}

func (c Change) String() string { return fmt.Sprintf("%s %s → %s", c.Field, c.Old, c.New) }

// diffFields lists the fields in which two structs of one type differ, in their order.
func diffFields[T any](cur, want T) []Change {
	var changes []Change
	a, b := reflect.ValueOf(cur), reflect.ValueOf(want)
	for i := range a.NumField() {
		x, y := a.Field(i), b.Field(i)
		if reflect.DeepEqual(x.Interface(), y.Interface()) || x.Kind() == reflect.Slice && x.Len() == 0 && y.Len() == 0 {
			continue
		}
		name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("json"), ",")
		changes = append(changes, Change{Field: name, Old: fmt.Sprint(x.Interface()), New: fmt.Sprint(y.Interface())})
	}
	return changes
}

// changesOf returns those of the changes that are of the given fields.
func changesOf(changes []Change, fields ...string) []Change {
	var found []Change
	for _, c := range changes {
		for _, f := range fields {
			if c.Field == f {
				found = append(found, c)
			}
		}
	}
	return found
}

func joinChanges(changes []Change) string {
	texts := make([]string, len(changes))
	for i, c := range changes {
		texts[i] = c.String()
	}
	return strings.Join(texts, ", ")
}
