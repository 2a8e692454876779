package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Show returns the definition of an object in the current database, as the server prints it.
func (s *Session) Show(ctx context.Context, kind Kind, name string) (Entry, error) {
	what, column := strings.ToUpper(string(kind)), "create "+string(kind)
	switch kind {
	case KindSequence:
		column = "create table"
	case KindTrigger:
		column = "sql original statement"
	}
	// The definition of a table is in UTF-8. Others are stored in the character sets of the
	// clients that created them, and have to be converted.
	results := ""
	if kind != KindTable && kind != KindSequence {
		results = "SET character_set_results = "
		if err := s.Exec(ctx, results+"utf8mb4"); err != nil {
			return Entry{}, err
		}
	}
	var row map[string]string
	sql := "SHOW CREATE " + what + " " + Ident(name)
	err := s.QueryNamed(ctx, sql, func(r map[string]string) error {
		row = r
		return nil
	})
	if results != "" && s.broken == nil {
		err = errors.Join(err, s.Exec(ctx, results+"binary"))
	}
	if err == nil && row[column] == "" {
		err = errors.New("the server shows no definition: the account may not read it")
	}
	if err != nil {
		return Entry{}, fmt.Errorf("%s: %w", sql, err)
	}
	e := Entry{Kind: kind, Name: name, Create: row[column], Client: row["character_set_client"], Collation: row["collation_connection"], Zone: row["time_zone"]}
	if kind == KindTable {
		e.Create = textual(e.Create)
	}
	if mode, ok := row["sql_mode"]; ok {
		e.Mode = &mode
	}
	return e, nil
}

// Elsewhere reports whether a storage engine has no rows of its own.
func Elsewhere(engine string) bool {
	return slices.Contains([]string{"mrg_myisam", "merge", "federated", "federatedx", "blackhole", "connect", "spider", "s3"}, strings.ToLower(engine))
}

// Same reports whether two definitions mean the same. The AUTO_INCREMENT counter of a table is
// ignored, because it belongs to its rows, as are character sets that Setting treats as the
// same.
func (e *Entry) Same(other *Entry) bool {
	if (e.Mode == nil) != (other.Mode == nil) || e.Mode != nil && *e.Mode != *other.Mode {
		return false
	}
	return e.client() == other.client() && e.Collation == other.Collation && e.Zone == other.Zone && plain(e.Create) == plain(other.Create)
}

// plain removes from a table's definition what does not matter: the AUTO_INCREMENT counter, and
// a character set before one of its own collations, which MySQL prints or not depending on how
// the column was created.
func plain(sql string) string {
	const word = " CHARACTER SET "
	sql = withoutCounter(sql)
	var b strings.Builder
	done := 0
	for i := 0; i >= 0 && i < len(sql); i = next(sql, i) {
		if !strings.HasPrefix(sql[i:], word) {
			continue
		}
		charset, rest, _ := strings.Cut(sql[i+len(word):], " ")
		if strings.HasPrefix(rest, "COLLATE "+charset+"_") {
			b.WriteString(sql[done:i])
			done = i + len(word) + len(charset)
		}
	}
	return b.String() + sql[done:]
}

// withoutCounter removes AUTO_INCREMENT from a table's options.
func withoutCounter(sql string) string {
	const word = " AUTO_INCREMENT="
	for i := 0; i >= 0 && i < len(sql); i = next(sql, i) {
		if strings.HasPrefix(sql[i:], word) {
			rest := strings.TrimLeft(sql[i+len(word):], "0123456789")
			return sql[:i] + rest
		}
	}
	return sql
}
