package wire

import (
	"maps"
	"slices"
	"unicode/utf8"
	"unsafe"
)

// writeFields appends what the struct at an address has in these fields. Those that blobs name were
// moved to the object store.
func (w *writer) writeFields(fields []field, at unsafe.Pointer, blobs []Blob) {
	for i := range fields {
		f := &fields[i]
		if blank := f.isBlank(at); blank || len(blobs) > 0 {
			switch {
			case isMoved(blobs, f.name()):
				if !blank {
					w.failField(f.name(), moved)
				}
				continue
			case blank && f.presence == optional:
				continue
			case blank && f.presence == nonEmpty:
				w.failField(f.name(), "is required")
			}
		}
		w.count++
		w.buf = append(w.buf, f.key...)
		f.write(w, f, unsafe.Add(at, f.offset))
	}
}

// endMap writes the header of the map that begins at at.
func (w *writer) endMap(at int) {
	start := len(w.buf)
	w.putMapLen(w.count)
	w.insertHeader(at, start)
}

// writeUnknown appends the fields that none of the shapes has.
func (w *writer) writeUnknown(rest []Field, shapes ...*shape) {
	for i, field := range rest {
		switch {
		case i > 0 && rest[i-1].Name >= field.Name:
			w.failField(field.Name, "is out of order or occurs twice")
		case !utf8.ValidString(field.Name):
			w.failField(field.Name, "must be valid UTF-8")
		case slices.ContainsFunc(shapes, func(s *shape) bool { return s.findField(field.Name) >= 0 }):
			w.failField(field.Name, "is a known field")
		case len(field.Value) == 0:
			w.failField(field.Name, "is required")
		}
		w.count++
		w.putString(field.Name)
		w.writeValue(field.Name, field.Value, MaxDepth)
	}
}

// writeRecord appends the struct at an address as a map. Its header is patched when the number of
// fields is known.
func (w *writer) writeRecord(f *field, at unsafe.Pointer) {
	w.path = append(w.path, f.name())
	outer, start := w.count, w.leaveRoom()
	w.count = 0
	w.writeFields(f.nested.fields, at, nil)
	if rest := *f.nested.unknownOf(at); len(rest) > 0 {
		w.writeUnknown(rest, f.nested)
	}
	w.endMap(start)
	w.count = outer
	w.path = w.path[:len(w.path)-1]
}

func (w *writer) writeText(name, s string) {
	if !utf8.ValidString(s) {
		w.failField(name, "must be valid UTF-8")
	}
	w.putString(s)
}

func (w *writer) writeValue(name string, v Raw, depth int) {
	if len(v) == 0 {
		return
	}
	if err := w.putRaw(v, depth); err != nil {
		w.failValue(name, "a value", err)
	}
}

// What follows writes the fields of a type each.

func writeString(w *writer, f *field, at unsafe.Pointer) { w.writeText(f.name(), *(*string)(at)) }

func writeWord(w *writer, f *field, at unsafe.Pointer) {
	writeString(w, f, at)
	w.checkWord(f, *(*string)(at))
}

func writeInt(w *writer, _ *field, at unsafe.Pointer)    { w.putInt(int64(*(*int)(at))) }
func writeInt64(w *writer, _ *field, at unsafe.Pointer)  { w.putInt(*(*int64)(at)) }
func writeUint64(w *writer, _ *field, at unsafe.Pointer) { w.putUint(*(*uint64)(at)) }
func writeBool(w *writer, _ *field, at unsafe.Pointer)   { w.putBool(*(*bool)(at)) }

func writeNumber(w *writer, f *field, at unsafe.Pointer) {
	x := *(*float64)(at)
	if !isFinite(x) {
		w.failField(f.name(), "must be finite")
	}
	w.putNumber(x)
}

// writePointer returns what writes a field that points to a value.
func writePointer(write func(*writer, *field, unsafe.Pointer)) func(*writer, *field, unsafe.Pointer) {
	return func(w *writer, f *field, at unsafe.Pointer) { write(w, f, *(*unsafe.Pointer)(at)) }
}

func writeRaw(w *writer, f *field, at unsafe.Pointer) { w.writeValue(f.name(), *(*Raw)(at), f.depth) }

func writeStrings(w *writer, f *field, at unsafe.Pointer) {
	list := *(*[]string)(at)
	w.putArrayLen(len(list))
	for _, s := range list {
		w.writeText(f.name(), s)
	}
}

func writeStringMap(w *writer, f *field, at unsafe.Pointer) {
	writeMap(w, f, *(*map[string]string)(at), func(s string) { w.writeText(f.name(), s) })
}

func writeObject(w *writer, f *field, at unsafe.Pointer) { w.writeRecord(f, at) }

func writeObjects[T any](w *writer, f *field, at unsafe.Pointer) {
	list := *(*[]T)(at)
	w.putArrayLen(len(list))
	for i := range list {
		w.writeRecord(f, unsafe.Pointer(&list[i]))
	}
}

func writeObjectMap[T any](w *writer, f *field, at unsafe.Pointer) {
	writeMap(w, f, *(*map[string]T)(at), func(item T) { w.writeRecord(f, unsafe.Pointer(&item)) })
}

func writeMap[T any](w *writer, f *field, m map[string]T, item func(T)) {
	w.putMapLen(len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		w.writeText(f.name(), k)
		item(m[k])
	}
}
