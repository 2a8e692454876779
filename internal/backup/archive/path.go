package archive

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxPart limits one part of a path, in bytes: file systems allow 255, and the suffixes of
// codec, encryption, segments and temporary files need room.
const maxPart = 180

// DataPath returns the path of a chunk with rows of a table:
// "db/shop/data/public.orders/0001.copy". Schema may be empty. Names are escaped so that any
// identifier becomes a valid part of a path that people still recognize.
func DataPath(database, schema, table string, part int, content string) string {
	dir := escape(table)
	if schema != "" {
		dir = escape(schema) + "." + dir
	}
	return fmt.Sprintf("db/%s/data/%s/%04d.%s", shorten(escape(database)), shorten(dir), part, content)
}

// SchemaPath returns the path of a chunk with definitions of a database:
// "db/shop/schema/pre-data.sql".
func SchemaPath(database, section string) string {
	return fmt.Sprintf("db/%s/schema/%s.sql", shorten(escape(database)), shorten(escape(section)))
}

// escape keeps letters, digits, '_' and '-', and writes every other byte as %XX. The dot is
// escaped because it separates schema and table, and because no part may be "..".
func escape(name string) string {
	var b strings.Builder
	for i, r := range name {
		size := utf8.RuneLen(r)
		if r == utf8.RuneError {
			_, size = utf8.DecodeRuneInString(name[i:])
		}
		if r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' || r == '-') {
			b.WriteRune(r)
			continue
		}
		for _, c := range []byte(name[i : i+size]) {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	if b.Len() == 0 {
		return "%"
	}
	return b.String()
}

// shorten cuts a long part and appends a hash of the whole, so that it stays unique.
func shorten(part string) string {
	if len(part) <= maxPart {
		return part
	}
	sum := sha256.Sum256([]byte(part))
	cut := maxPart - 17
	for !utf8.RuneStart(part[cut]) {
		cut--
	}
	return part[:cut] + "~" + hex.EncodeToString(sum[:8])
}

// checkPath returns an error if p cannot be the path of a chunk.
func checkPath(p string) error {
	if !utf8.ValidString(p) {
		return fmt.Errorf("chunk path %q: not valid UTF-8", p)
	}
	for part := range strings.SplitSeq(p, "/") {
		switch {
		case part == "" || part == "." || part == "..":
			return fmt.Errorf("chunk path %q: a part is empty or dots only", p)
		case len(part) > maxPart+20:
			return fmt.Errorf("chunk path %q: a part of %d bytes is too long", p, len(part))
		case strings.ContainsFunc(part, func(r rune) bool { return unicode.IsControl(r) || r == '\\' }):
			return fmt.Errorf("chunk path %q: a backslash or control character", p)
		}
	}
	if !strings.Contains(p, "/") && reserved(p) {
		return fmt.Errorf("chunk path %q: the name is reserved", p)
	}
	return nil
}
