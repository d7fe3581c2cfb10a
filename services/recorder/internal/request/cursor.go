package request

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"code.wake.dev/wake/services/recorder/archive"
)

// Cursors are places in the log that one recorder has: a position, and the beginning of the log's incarnation, since the
// same position of another installation is another place.
type Cursors struct{ mark string }

// markLength is how much of an incarnation tells logs apart that a caller may mix up.
const markLength = 8

// CursorsOf returns those of the log that is recorded.
func CursorsOf(ctx context.Context, t *archive.Tx) (Cursors, error) {
	var incarnation string
	err := t.Row(ctx, `SELECT coalesce((SELECT incarnation FROM streams), '')`).Scan(&incarnation)
	return Cursors{incarnation[:min(markLength, len(incarnation))]}, err
}

// Cursor returns the cursor of a position.
func (c Cursors) Cursor(pos uint64) string { return fmt.Sprintf("%d.%s", pos, c.mark) }

// Position returns the position of a cursor that an earlier answer gave; 0 is that of none.
func (c Cursors) Position(cursor string) (uint64, error) {
	if cursor == "" {
		return 0, nil
	}
	digits, mark, _ := strings.Cut(cursor, ".")
	pos, err := strconv.ParseUint(digits, 10, 63)
	switch {
	case err != nil || pos == 0:
		return 0, Bad("cursor is none that an earlier answer gave")
	case mark != c.mark:
		return 0, Bad("cursor is of another installation, or of what it was before: begin with the first page")
	}
	return pos, nil
}
