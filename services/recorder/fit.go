package recorder

import (
	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/pkg/wire"
)

// fitBookmarks leaves the first points of a page to the next one, as long as they don't fit into an answer. Points of one position stay together.
func fitBookmarks(page *wire.BookmarksResponse, f api.Form) {
	points, room := page.Points, f.Limit-100
	first := len(points)
	for first > 0 {
		if room -= encodedSize(points[first-1], f); room < 0 {
			break
		}
		first--
	}
	for first > 0 && first < len(points) && points[first-1].Position == points[first].Position {
		first++
	}
	if first > 0 && first < len(points) { // else one position has more than fits, which the answer says
		page.Points, page.Before = points[first:], points[first].Position
	}
}

// fitDiff cuts from a comparison what doesn't fit into an answer, and says so: values first lose what they are, then their names.
func fitDiff(d *wire.DiffResponse, f api.Form) {
	rest := *d
	rest.Nodes, rest.Tools, rest.State, rest.Outputs, rest.Input = nil, nil, nil, nil, nil
	room := f.Limit - encodedSize(rest, f) - 200
	d.Nodes = fitList(d.Nodes, f, &room, &d.Omitted)
	d.Tools = fitList(d.Tools, f, &room, &d.Omitted)
	if d.Input != nil {
		fitPair(d.Input, f, &room)
	}
	for _, values := range []*[]wire.DiffValue{&d.Outputs, &d.State} {
		fit := 0
		for i := range *values {
			v := &(*values)[i]
			if room -= encodedSize(v.Name, f) + 40; room < 0 {
				d.Omitted += len(*values) - i
				break
			}
			fitPair(&v.DiffPair, f, &room)
			fit++
		}
		*values = (*values)[:fit]
	}
}

// fitPair leaves both values out if there is no room for them.
func fitPair(p *wire.DiffPair, f api.Form, room *int) {
	size := encodedSize(p, f)
	if size > *room {
		*p = wire.DiffPair{Cut: true}
		size = 20
	}
	*room -= size
}

// fitList returns as many of a list's first as there is room for, and counts the rest.
func fitList[T any](all []T, f api.Form, room, omitted *int) []T {
	for i := range all {
		size := encodedSize(all[i], f)
		if size > *room {
			*omitted += len(all) - i
			return all[:i]
		}
		*room -= size
	}
	return all
}

// encodedSize is what a value takes in an answer.
func encodedSize(v any, f api.Form) int {
	raw, err := wire.Marshal(v)
	if err != nil || !f.JSON {
		return len(raw) + 1
	}
	b, err := wire.AppendJSON(nil, raw)
	if err != nil {
		return 6 * len(raw)
	}
	return len(b) + 1
}
