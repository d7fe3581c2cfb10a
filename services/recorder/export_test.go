package recorder

import "context"

// SizeOf returns the bytes that a store takes.
func SizeOf(ctx context.Context, s *Store) (int64, error) {
	total, _, _, err := s.size(ctx)
	return total, err
}

// HoldingTables names the tables from which a run's rows are removed.
func HoldingTables() (names []string) {
	for _, h := range holdings() {
		names = append(names, h.table)
	}
	return names
}
