package table

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Create returns the statements that make the tables in a database, and their
// indexes.
func (l Tables) Create(database string) string {
	var b strings.Builder
	for _, t := range l.Of(database) {
		b.WriteString(t.createText(database))
		for _, i := range t.Indexes {
			if i.Only == "" || i.Only == database {
				b.WriteString(i.createText(t.Name, database))
			}
		}
	}
	return b.String()
}

// createText returns the statement that makes the table.
func (t Table) createText(database string) string {
	var lines []string
	rowid := len(t.Key) == 1 && t.columnNamed(t.Key[0]).isNumber()
	for _, c := range t.Columns {
		line := c.Name + " " + c.typeIn(database)
		switch {
		case len(t.Key) == 1 && t.Key[0] == c.Name:
			line += " PRIMARY KEY"
		case !c.Null:
			line += " NOT NULL"
		}
		if c.Unique {
			line += " UNIQUE"
		}
		if c.Refers != "" && database == SQLite {
			line += " REFERENCES " + c.Refers + " (id)"
		}
		lines = append(lines, line)
	}
	if len(t.Key) > 1 {
		lines = append(lines, "PRIMARY KEY ("+strings.Join(t.Key, ", ")+")")
	}
	if len(t.Also) > 0 {
		lines = append(lines, "UNIQUE ("+strings.Join(t.Also, ", ")+")")
	}
	end := ""
	if database == SQLite {
		end = " STRICT"
		if !rowid && !t.Apart && len(t.Key) > 0 {
			end += ", WITHOUT ROWID"
		}
	}
	return "CREATE TABLE " + t.Name + " (\n\t" + strings.Join(lines, ",\n\t") + "\n)" + end + ";\n"
}

// createText returns the statement that makes the index.
func (i Index) createText(on, database string) string {
	text := "CREATE INDEX " + i.Name + " ON " + on
	if i.Hash && database == Postgres {
		text += " USING hash"
	}
	text += " (" + i.Columns + ")"
	if i.Where != "" {
		text += " WHERE " + i.Where
	}
	return text + ";\n"
}

func (t Table) columnNamed(name string) Column {
	i := slices.IndexFunc(t.Columns, func(c Column) bool { return c.Name == name })
	return t.Columns[i]
}

func (c Column) isNumber() bool { return c.typeIn(SQLite) == "INTEGER" }

// typeIn is the column's type in a database.
func (c Column) typeIn(database string) string {
	var kind [2]string
	switch c.Type {
	case reflect.Float64:
		kind = [2]string{"REAL", "DOUBLE PRECISION"}
	case reflect.String:
		kind = [2]string{"TEXT", "TEXT"}
		if c.Named {
			kind[1] = `TEXT COLLATE "C"`
		}
	case reflect.Slice:
		kind = [2]string{"BLOB", "BYTEA"}
	default:
		kind = [2]string{"INTEGER", "BIGINT"}
	}
	if database == Postgres {
		return kind[1]
	}
	return kind[0]
}

// Insert returns the statement that inserts a row: [Values] are its parameters.
func (t Table) Insert() string {
	names := t.columnNames(func(c Column) bool { return !c.Number })
	params := make([]string, len(names))
	for i := range params {
		params[i] = fmt.Sprintf("?%d", i+1)
	}
	text := "INSERT INTO " + t.Name + " (" + strings.Join(names, ", ") + ") VALUES (" + strings.Join(params, ", ") + ")"
	if len(names) < len(t.Columns) {
		text += " RETURNING id"
	}
	return text
}

// Update returns the statement that writes a row that the database has numbered:
// [Values] are its parameters, and its number.
func (t Table) Update() string {
	names := t.columnNames(func(c Column) bool { return !c.Number })
	for i, name := range names {
		names[i] = fmt.Sprintf("%s = ?%d", name, i+1)
	}
	return fmt.Sprintf("UPDATE %s SET %s WHERE id = ?%d", t.Name, strings.Join(names, ", "), len(names)+1)
}

// List are the columns' names, for a SELECT that is scanned into [Fields].
func (t Table) List() string {
	return strings.Join(t.columnNames(func(Column) bool { return true }), ", ")
}

// Values are the parameters of [Table.Insert] for a row. row is a pointer to it.
func Values(row any) []any { return AppendValues(nil, row) }

// AppendValues appends the [Values] of rows of one table.
func AppendValues(list []any, rows ...any) []any {
	from := firstUnnumbered(reflect.TypeOf(rows[0]).Elem())
	for _, row := range rows {
		v := reflect.ValueOf(row).Elem()
		list = slices.Grow(list, v.NumField()-from)
		for i := from; i < v.NumField(); i++ {
			list = append(list, valueOf(v.Field(i)))
		}
	}
	return list
}

// valueOf is a field as a driver takes it. Most are empty or small: those take no memory, as they would if the field gave them itself.
func valueOf(f reflect.Value) any {
	switch f.Kind() {
	case reflect.String:
		return f.String()
	case reflect.Int, reflect.Int64:
		return f.Int()
	case reflect.Uint64:
		return int64(min(f.Uint(), math.MaxInt64)) // no database has larger ones
	case reflect.Pointer:
		if f.IsNil() {
			return nil
		}
		return valueOf(f.Elem())
	default:
		return f.Interface()
	}
}

// firstUnnumbered is the place of the first column that isn't the row's number.
func firstUnnumbered(row reflect.Type) int {
	if strings.HasSuffix(row.Field(0).Tag.Get("db"), ",number") {
		return 1
	}
	return 0
}

// Fields are what a row is scanned into, in the order of [Table.List]. row is a
// pointer to it.
func Fields(row any) []any {
	v := reflect.ValueOf(row).Elem()
	list := make([]any, v.NumField())
	for i := range list {
		list[i] = v.Field(i).Addr().Interface()
	}
	return list
}

// Copier returns what gives an answer, of type A, what a row has in fields of the same names. The names are looked up
// once: an answer has many rows.
func Copier[A, R any]() func(*A, *R) {
	type pair struct {
		to   []int
		from int
	}
	var same []pair
	answer, row := reflect.TypeFor[A](), reflect.TypeFor[R]()
	for i := range row.NumField() {
		if f, has := answer.FieldByName(row.Field(i).Name); has {
			same = append(same, pair{f.Index, i})
		}
	}
	return func(a *A, r *R) {
		to, from := reflect.ValueOf(a).Elem(), reflect.ValueOf(r).Elem()
		for _, p := range same {
			v, f := from.Field(p.from), to.FieldByIndex(p.to)
			if v.Type() != f.Type() {
				v = v.Convert(f.Type())
			}
			f.Set(v)
		}
	}
}

// Comparison is what of a derived table follows from the events.
type Comparison struct {
	// Query asks for the rows of the runs numbered ?1 to ?2, ordered by that number, which comes first, and by the columns
	// that tell the rows of a run apart, which come next.
	Query string
	Whole string // the same of a single run that has a good part of all rows: read in their own order, not by an index
	Keys  int    // how many these are
	Nodes []int  // columns behind the first that have numbers of nodes, from 0: names follow from the events, numbers don't
}

// Compared is what of a derived table follows from the events.
func (t Table) Compared() (c Comparison) {
	by := t.By
	if by == nil {
		by = slices.DeleteFunc(slices.Clone(t.Key), func(name string) bool { return t.columnNamed(name).Refers == "runs" })
	}
	columns := slices.Clone(by)
	columns = append(columns, t.columnNames(func(c Column) bool {
		return !c.Number && !c.Place && c.Refers != "runs" && !slices.Contains(by, c.Name)
	})...)
	c.Keys = len(by)
	for i, name := range columns {
		switch {
		case t.columnNamed(name).Refers != "nodes":
		case i < c.Keys: // they order the rows
			columns[i] = "(SELECT node FROM nodes WHERE id = " + t.Name + "." + name + " AND nodes.run = " + t.Name + ".run) AS " + name
		default:
			c.Nodes = append(c.Nodes, i)
		}
	}
	number, where := "run", t.rowsWhere("BETWEEN ?1 AND ?2")
	if !t.OfRun() {
		number, where = "id", "id BETWEEN ?1 AND ?2"
	}
	order := []string{"1"}
	for i := range by {
		order = append(order, strconv.Itoa(i+2))
	}
	begin := "SELECT " + number + " AS of_run, " + strings.Join(columns, ", ") + " FROM " + t.Name + " WHERE "
	c.Query = begin + where + " ORDER BY " + strings.Join(order, ", ")
	if c.Whole = c.Query; slices.Equal(t.Key, by) && len(by) == 1 && t.OfRun() {
		c.Whole = begin + "+" + where + " ORDER BY " + by[0] // the plus keeps the index of runs out
	}
	return c
}

// RowsOf is the condition that selects the rows of a run, by its number, without looking at those of others.
func (t Table) RowsOf(run string) string { return t.rowsWhere("= " + run) }

// rowsWhere selects the rows of runs by a condition of their numbers: where no index begins with the run, the rows are
// found by its nodes.
func (t Table) rowsWhere(number string) string {
	if t.begins("run") || !t.begins("node") {
		return "run " + number
	}
	return "node IN (SELECT id FROM nodes WHERE run " + number + ")"
}

// begins reports whether the key, or an index of all rows, begins with a column.
func (t Table) begins(column string) bool {
	return t.Key[0] == column || slices.ContainsFunc(t.Indexes, func(i Index) bool {
		first, _, _ := strings.Cut(i.Columns, ",")
		return first == column && i.Where == ""
	})
}
