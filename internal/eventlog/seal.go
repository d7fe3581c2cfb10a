package eventlog

import (
	"code.wake.dev/wake/pkg/wire"
)

// sealedForm returns the stored form of an encoded event and its blobs, encrypted if
// the log has keys. Large fields leave the event before it is sealed: opening it
// needs no blob.
func (l *Log) sealedForm(data []byte) (stored []byte, blobs map[string][]byte, err error) {
	small, blobs, err := l.StoredForm(data)
	if err != nil {
		return nil, nil, err
	}
	return l.sealEvent(small, blobs)
}

// sealEvent encrypts an event and its blobs, if the log has keys.
func (l *Log) sealEvent(data []byte, blobs map[string][]byte) ([]byte, map[string][]byte, error) {
	if l.o.Keys == nil {
		return data, blobs, nil
	}
	boxes := make(map[string][]byte, len(blobs))
	for sum, content := range blobs {
		var err error
		if boxes[sum], err = l.o.Keys.Blob(sum, content); err != nil {
			return nil, nil, err
		}
	}
	stored, err := l.o.Keys.Event(data)
	return stored, boxes, err
}

// StoredForm returns an encoded event as this log would store it if it had no keys: as
// it is, or with its largest fields moved to the object store. The same event always
// has the same form.
func (l *Log) StoredForm(data []byte) (small []byte, blobs map[string][]byte, err error) {
	if len(data) <= l.inlineLimit() {
		return data, nil, nil
	}
	return wire.Externalize(data, l.inlineLimit())
}
