package eventlog

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
