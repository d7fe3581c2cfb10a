package index

import (
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// storeFields copies the large fields of an event into the file: the object store may
// forget them, the record doesn't.
func (w *writer) storeFields(run *runRow, e *wire.Event) error {
	for _, b := range e.Blobs {
		data, ok := w.batch.Blobs[b.SHA256]
		kept := table.Blob{SHA256: b.SHA256, Size: b.Size}
		if ok {
			kept.Data = &data
		}
		if err := w.putRow(addBlob, &kept); err != nil {
			return err
		}
		if err := w.putRow(addUse, &table.BlobUse{SHA256: b.SHA256, Run: run.ID}); err != nil {
			return err
		}
	}
	return nil
}

// inlineFields returns the entry's event with its large fields.
func (w *writer) inlineFields(e *eventlog.Entry) (*wire.Event, error) {
	return archive.Inline(e.Event, e.Data, func(sha string) ([]byte, error) { return w.tx.Blob(w.ctx, sha) })
}
