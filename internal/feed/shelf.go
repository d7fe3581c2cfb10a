package feed

import (
	"slices"
	"sync"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/pkg/wire"
)

// shelfItems bounds what a shelf holds.
const shelfItems = 4

// pieceShelf holds what was given in part, until the rest is asked for or others need the
// place: else each piece would cost as much as the whole. The zero value is empty.
type pieceShelf struct {
	mu    sync.Mutex
	items []shelfEntry // the newest last
}

type shelfEntry struct {
	name string
	data []byte
}

func (s *pieceShelf) pieceAt(name string, offset int64, f api.Form, fetch func() ([]byte, error)) (wire.PieceResponse, error) {
	data := s.takeItem(name, offset)
	if data == nil {
		var err error
		if data, err = fetch(); err != nil {
			return wire.PieceResponse{}, err
		}
	}
	if offset < 0 || offset > int64(len(data)) {
		return wire.PieceResponse{}, badRequest("offset is beyond the end, %d", len(data))
	}
	limit := min(f.Limit, maxPiece) - 1<<10
	if f.JSON {
		limit = limit / 4 * 3 // base64
	}
	end := min(int(offset)+limit, len(data))
	if end < len(data) {
		s.putItem(name, data)
	}
	return wire.PieceResponse{Size: int64(len(data)), Data: data[offset:end]}, nil
}

// takeItem takes what is continued off the shelf.
func (s *pieceShelf) takeItem(name string, offset int64) []byte {
	if offset == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.items, func(x shelfEntry) bool { return x.name == name })
	if i < 0 {
		return nil
	}
	data := s.items[i].data
	s.items = slices.Delete(s.items, i, i+1)
	return data
}

func (s *pieceShelf) putItem(name string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.items) == shelfItems {
		s.items = slices.Delete(s.items, 0, 1)
	}
	s.items = append(s.items, shelfEntry{name, data})
}
