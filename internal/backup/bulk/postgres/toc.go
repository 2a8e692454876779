package postgres

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// A Section is a part of a dump.
type Section string

// The sections of definitions.
const (
	PreData  Section = "pre-data"  // what must exist before rows: types, tables, functions
	PostData Section = "post-data" // what is better created after rows: indexes, constraints, triggers
)

// An Entry is one object in the table of contents of a dump, with the statements that create
// and drop it.
type Entry struct {
	ID        int     `json:"id"`
	Desc      string  `json:"desc"` // "TABLE", "FK CONSTRAINT", ...
	Tag       string  `json:"tag"`  // the object's name
	Namespace string  `json:"namespace,omitempty"`
	Owner     string  `json:"owner,omitempty"`
	Section   Section `json:"section"`

	Create string `json:"create,omitempty"`
	Drop   string `json:"drop,omitempty"`

	// Tablespace and AccessMethod must be the defaults when Create runs.
	Tablespace   string `json:"tablespace,omitempty"`
	AccessMethod string `json:"access_method,omitempty"`

	// Depends are the IDs of entries that must be created before.
	Depends []int `json:"depends,omitempty"`
}

// Name returns the kind and the name for messages: "TABLE public.orders".
func (e *Entry) Name() string {
	name := e.Desc + " "
	if e.Namespace != "" {
		name += e.Namespace + "."
	}
	return name + e.Tag
}

// A TOC is the table of contents of a dump, in the order in which its statements run.
type TOC struct {
	// Database is the name of the database that was dumped.
	Database string `json:"database"`

	// Server and Tool are the version strings of the server and of pg_dump.
	Server string `json:"server"`
	Tool   string `json:"tool"`

	Entries []Entry `json:"-"`
}

// Encode writes the table of contents as lines of JSON: the TOC, then each entry.
func (t *TOC) Encode(w io.Writer) error {
	out := bufio.NewWriterSize(w, 64<<10)
	enc := lines(out)
	if err := enc.Encode(t); err != nil {
		return fmt.Errorf("write table of contents: %w", err)
	}
	for i := range t.Entries {
		if err := enc.Encode(&t.Entries[i]); err != nil {
			return fmt.Errorf("write table of contents: %w", err)
		}
	}
	return out.Flush()
}

func lines(w io.Writer) *json.Encoder {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc
}

// DecodeTOC reads the output of Encode.
func DecodeTOC(r io.Reader) (*TOC, error) {
	dec := json.NewDecoder(r)
	t := &TOC{}
	known := map[string]string{} // one copy of strings that many entries share
	if err := dec.Decode(t); err != nil {
		return nil, fmt.Errorf("read table of contents: %w", err)
	}
	for {
		var e Entry
		err := dec.Decode(&e)
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read table of contents: %w", err)
		}
		for _, s := range []*string{&e.Desc, &e.Namespace, &e.Owner, (*string)(&e.Section), &e.Tablespace, &e.AccessMethod} {
			if k, ok := known[*s]; ok {
				*s = k
			} else {
				known[*s] = *s
			}
		}
		t.Entries = append(t.Entries, e)
	}
}

// Versions of the format that ReadTOC supports: pg_dump 9.x to 18 write 1.12 to 1.16.
const (
	oldestTOC = 1<<8 | 12
	newestTOC = 1<<8 | 16
)

const (
	customFormat = 1
	// maxTOCString limits the length of a definition, in bytes: a function body may be long,
	// but a length from a damaged file may be anything.
	maxTOCString = 256 << 20
)

// ErrTOC says that bytes are not a dump in pg_dump's custom format, or one of an unknown
// version.
var ErrTOC = errors.New("not a custom-format dump")

// ConvertTOC reads a dump in pg_dump's custom format, writes it in the format of Encode, and
// passes each entry to see. Only one entry is in memory at a time, because the statements of
// many tables take much memory.
func ConvertTOC(r io.Reader, w io.Writer, see func(*Entry) error) (*TOC, error) {
	t := &tocReader{r: bufio.NewReaderSize(r, 64<<10)}
	toc := t.header()
	out := bufio.NewWriterSize(w, 64<<10)
	enc := lines(out)
	if t.err == nil {
		t.write(enc, toc)
	}
	count := t.int()
	if t.err == nil && count < 0 {
		t.fail("%d entries", count)
	}
	section := PreData
	for range count {
		e, sec := t.entry()
		if t.err != nil {
			break
		}
		switch sec {
		case 1: // none: comments, grants and labels belong to the section of their object
			e.Section = section
		case 2:
			section, e.Section = PreData, PreData
		case 3: // data: a dump of definitions has only large objects
			continue
		case 4:
			section, e.Section = PostData, PostData
		default:
			t.fail("section %d", sec)
		}
		if err := see(&e); err != nil {
			return nil, err
		}
		t.write(enc, &e)
	}
	if t.err != nil {
		return nil, t.err
	}
	return toc, out.Flush()
}

func (t *tocReader) write(enc *json.Encoder, v any) {
	if err := enc.Encode(v); err != nil && t.err == nil {
		t.err = fmt.Errorf("write table of contents: %w", err)
	}
}

// tocReader reads the parts of a table of contents. After an error, everything reads as zero.
type tocReader struct {
	r       *bufio.Reader
	version int
	intSize int
	offSize int
	err     error
}

func (t *tocReader) fail(format string, args ...any) {
	if t.err == nil {
		t.err = fmt.Errorf("read table of contents: %s: %w", fmt.Sprintf(format, args...), ErrTOC)
	}
}

func (t *tocReader) byte() byte {
	if t.err != nil {
		return 0
	}
	b, err := t.r.ReadByte()
	if err != nil {
		t.fail("it ends early")
	}
	return b
}

// int reads a sign and a little-endian number.
func (t *tocReader) int() int {
	negative := t.byte() != 0
	var n int64
	for i := range t.intSize {
		n |= int64(t.byte()) << (8 * i)
	}
	if n < 0 || n > 1<<40 {
		t.fail("number %d", n)
		return 0
	}
	if negative {
		return int(-n)
	}
	return int(n)
}

// optional reads a string; a missing one is "", and ok is false.
func (t *tocReader) optional() (s string, ok bool) {
	n := t.int()
	if t.err != nil || n < 0 {
		return "", false
	}
	if n > maxTOCString {
		t.fail("string of %d bytes", n)
		return "", false
	}
	var b strings.Builder
	if _, err := io.CopyN(&b, t.r, int64(n)); err != nil {
		t.fail("it ends early")
	}
	return b.String(), true
}

func (t *tocReader) string() string {
	s, _ := t.optional()
	return s
}

func (t *tocReader) header() *TOC {
	var magic [5]byte
	for i := range magic {
		magic[i] = t.byte()
	}
	if t.err != nil || string(magic[:]) != "PGDMP" {
		t.fail("it does not begin with PGDMP")
		return &TOC{}
	}
	t.version = int(t.byte())<<8 | int(t.byte())
	t.byte() // revision
	if t.version < oldestTOC || t.version > newestTOC {
		t.fail("format version %d.%d, this program knows %d.%d to %d.%d",
			t.version>>8, t.version&0xff, oldestTOC>>8, oldestTOC&0xff, newestTOC>>8, newestTOC&0xff)
	}
	t.intSize, t.offSize = int(t.byte()), int(t.byte())
	if t.intSize < 1 || t.intSize > 8 || t.offSize < 1 || t.offSize > 8 {
		t.fail("numbers of %d and offsets of %d bytes", t.intSize, t.offSize)
		t.intSize, t.offSize = 0, 0
	}
	if f := t.byte(); f != customFormat {
		t.fail("format %d", f)
	}
	if t.version >= 1<<8|15 {
		t.byte() // compression algorithm
	} else {
		t.int() // compression level
	}
	for range 7 { // the time, in parts
		t.int()
	}
	return &TOC{Database: t.string(), Server: t.string(), Tool: t.string()}
}

func (t *tocReader) entry() (Entry, int) {
	var e Entry
	e.ID = t.int()
	t.int()    // whether there is data
	t.string() // OID of the catalogue
	t.string() // OID
	e.Tag, e.Desc = t.string(), t.string()
	section := t.int()
	e.Create, e.Drop = t.string(), t.string()
	t.string() // COPY statement
	e.Namespace, e.Tablespace = t.string(), t.string()
	if t.version >= 1<<8|14 {
		e.AccessMethod = t.string()
	}
	if t.version >= 1<<8|16 {
		const partitioned = 'p'
		// The default does not apply to a partitioned table.
		if kind := t.int(); kind == partitioned && e.AccessMethod != "" {
			e.Create += "ALTER TABLE " + Qualified(e.Namespace, e.Tag) + " SET ACCESS METHOD " + Ident(e.AccessMethod) + ";\n"
			e.AccessMethod = ""
		}
	}
	e.Owner = t.string()
	t.string() // whether it has OIDs
	for {
		s, ok := t.optional()
		if !ok || t.err != nil {
			break
		}
		id, err := strconv.Atoi(s)
		if err != nil {
			t.fail("dependency %q", s)
		}
		e.Depends = append(e.Depends, id)
	}
	t.byte() // state of the offset of the data
	for range t.offSize {
		t.byte()
	}
	return e, section
}

// A Pass says when an entry is created. Grants come after all data, so that an owner's missing
// privileges do not prevent loading it; event triggers come last, so that they do not react to
// the restore.
type Pass int

// The passes, in their order.
const (
	PassMain Pass = iota
	PassACL
	PassLast
)

// Pass returns when the entry is created.
func (e *Entry) Pass() Pass {
	switch {
	case e.Desc == "ACL", e.Desc == "ACL LANGUAGE", e.Desc == "DEFAULT ACL":
		return PassACL
	case e.Desc == "EVENT TRIGGER", e.Desc == "MATERIALIZED VIEW DATA":
		return PassLast
	case (e.Desc == "COMMENT" || e.Desc == "SECURITY LABEL") && strings.HasPrefix(e.Tag, "EVENT TRIGGER "):
		return PassLast
	}
	return PassMain
}

// Setting reports whether the entry is a setting of the session instead of an object.
func (e *Entry) Setting() bool {
	return e.Desc == "ENCODING" || e.Desc == "STDSTRINGS" || e.Desc == "SEARCHPATH"
}

// OfDatabase reports whether the entry is about the database itself and not about its content.
func (e *Entry) OfDatabase() bool {
	switch e.Desc {
	case "DATABASE", "DATABASE PROPERTIES":
		return true
	case "ACL", "COMMENT", "SECURITY LABEL":
		return strings.HasPrefix(e.Tag, "DATABASE ")
	}
	return false
}

// ownedAs maps kinds of entries to the words for ALTER, for those that are identified by
// namespace and tag.
var ownedAs = map[string]string{
	"COLLATION": "COLLATION", "CONVERSION": "CONVERSION", "DOMAIN": "DOMAIN", "TABLE": "TABLE", "TYPE": "TYPE",
	"FOREIGN TABLE": "FOREIGN TABLE", "VIEW": "TABLE", "SEQUENCE": "TABLE", "MATERIALIZED VIEW": "TABLE",
	"TEXT SEARCH DICTIONARY": "TEXT SEARCH DICTIONARY", "TEXT SEARCH CONFIGURATION": "TEXT SEARCH CONFIGURATION",
	"STATISTICS": "STATISTICS", "DATABASE": "DATABASE", "PROCEDURAL LANGUAGE": "PROCEDURAL LANGUAGE",
	"SCHEMA": "SCHEMA", "EVENT TRIGGER": "EVENT TRIGGER", "FOREIGN DATA WRAPPER": "FOREIGN DATA WRAPPER",
	"SERVER": "SERVER", "PUBLICATION": "PUBLICATION", "SUBSCRIPTION": "SUBSCRIPTION",
}

// ownedByDrop are the kinds that are identified by more than a name, which is in their DROP
// statement.
var ownedByDrop = []string{"AGGREGATE", "FUNCTION", "OPERATOR", "OPERATOR CLASS", "OPERATOR FAMILY", "PROCEDURE"}

// OwnerSQL returns the statement that sets the entry's owner, or "" if the entry has no owner
// of its own.
func (e *Entry) OwnerSQL() string {
	if e.Owner == "" || e.Drop == "" {
		return ""
	}
	if kind, ok := ownedAs[e.Desc]; ok {
		name := Ident(e.Tag)
		if e.Namespace != "" && e.Desc != "SCHEMA" {
			name = Qualified(e.Namespace, e.Tag)
		}
		return "ALTER " + kind + " " + name + " OWNER TO " + Ident(e.Owner)
	}
	if slices.Contains(ownedByDrop, e.Desc) {
		what := strings.TrimRight(strings.TrimPrefix(e.Drop, "DROP "), ";\n")
		return "ALTER " + what + " OWNER TO " + Ident(e.Owner)
	}
	return ""
}

// Exclusive reports whether creating the entry takes exclusive locks on the tables that it
// depends on, so that two such entries cannot be created concurrently.
func (e *Entry) Exclusive() bool {
	switch e.Desc {
	case "INDEX", "STATISTICS", "COMMENT":
		return false
	}
	return true
}
