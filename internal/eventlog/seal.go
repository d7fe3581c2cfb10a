package eventlog

// sealed returns the stored form of an encoded event and its blobs, encrypted if
// the log has keys. Large fields leave the event before it is sealed: whoever
// opens it needs no blob for that.
func (l *Log) sealed(data []byte) (stored []byte, blobs map[string][]byte, err error) {
	small, blobs, err := l.StoredForm(data)
	if err != nil || l.o.Keys == nil {
		return small, blobs, err
	}
	for sum, content := range blobs {
		if blobs[sum], err = l.o.Keys.Blob(sum, content); err != nil {
			return nil, nil, err
		}
	}
	if stored, err = l.o.Keys.Event(small); err != nil {
		return nil, nil, err
	}
	return stored, blobs, nil
}
