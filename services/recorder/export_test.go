package recorder

import (
	"context"
)

// Fill lets a recorder's store not grow any more, as on a disk that is full, or lets it grow again.
func (r *Recorder) Fill(ctx context.Context, full bool) error {
	limit := "4294967294"
	if full {
		limit = "1"
	}
	_, err := r.store.Archive.Writer.ExecContext(ctx, "PRAGMA max_page_count = "+limit)
	return err
}
