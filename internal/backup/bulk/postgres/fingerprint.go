package postgres

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// An Aspect is one property of one object of a database: its definition, its owner, its
// privileges, its comment.
type Aspect struct {
	Kind string `json:"kind"` // "column", "owner of relation"
	Name string `json:"name"`
	Text string `json:"text"`
}

// OfOwner and OfRights report whether the aspect is an object's owner or its privileges.
func (a Aspect) OfOwner() bool  { return strings.HasPrefix(a.Kind, "owner of ") }
func (a Aspect) OfRights() bool { return strings.HasPrefix(a.Kind, "rights ") }

// AttrCatalogue is the attribute, of a database in a manifest, with the edition of its aspects.
const (
	AttrCatalogue    = "catalogue"
	CatalogueEdition = "5"
)

// AttrNoPublic is the attribute, of a database in a manifest, which says that it has no schema
// public, unlike a new database.
const AttrNoPublic = "no_schema_public"

// later are the kinds of aspects that the first edition does not have.
var later = map[string]bool{
	"locale of collation":                true,
	"column of sequence":                 true,
	"rights to large object":             true,
	"owner of publication":               true,
	"owner of foreign data wrapper":      true,
	"rights to foreign data wrapper":     true,
	"owner of server":                    true,
	"rights to server":                   true,
	"user mapping":                       true,
	"language":                           true,
	"owner of language":                  true,
	"rights to language":                 true,
	"conversion":                         true,
	"owner of conversion":                true,
	"owner of collation":                 true,
	"owner of operator":                  true,
	"owner of operator class":            true,
	"owner of operator family":           true,
	"owner of text search configuration": true,
	"owner of text search dictionary":    true,
	"access method":                      true,
	"transform":                          true,
	"compression of column":              true,
}

// Later reports whether the aspect is of a kind that a backup without AttrCatalogue does not
// have.
func (a Aspect) Later() bool { return later[a.Kind] }

// before orders aspects as the server does.
func (a Aspect) before(b Aspect) bool {
	if a.Kind != b.Kind {
		return a.Kind < b.Kind
	}
	return a.Name < b.Name
}

// Fingerprint yields all aspects of the session's database in order, except those of the schema
// besides. If two databases have the same aspects, and servers of the same major version, they
// have the same definitions, which are in the server's own wording. Event triggers are left
// out, because a restore creates them last.
func (s *Session) Fingerprint(ctx context.Context, besides string, yield func(Aspect) error) error {
	sql := s.fingerprintSQL(besides, CatalogueEdition)
	// A backup runs it twice, and planning such a long statement takes the server three times
	// as long as running it.
	const name = "weir_fingerprint"
	if s.planned == "" {
		if err := s.Exec(ctx, "PREPARE "+name+" AS "+sql); err != nil {
			return fmt.Errorf("read all definitions: %w", err)
		}
		s.planned = sql
	}
	if s.planned == sql {
		sql = "EXECUTE " + name
	}
	return s.aspects(ctx, sql, yield)
}

// fingerprintSQL returns the statement that yields the aspects, in the form of an edition.
func (s *Session) fingerprintSQL(besides, edition string) string {
	sql, columns, others := fingerprintSQL, orderOfColumns, unsaid
	switch edition {
	case "", "2":
		columns, others = formerOrderOfColumns, formerUnsaid
	case "3":
		others = formerUnsaid
	case "4":
		sql = strings.ReplaceAll(sql, "@CONSTRAINT@", formerConstraint)
	}
	sql = others.Replace(columns.Replace(sql))
	sql = strings.ReplaceAll(sql, "@BESIDES@", Literal(besides))
	if s.version >= 130000 {
		sql = strings.ReplaceAll(sql, "@CLONES@", " OR t.tgparentid <> 0 AND t.tgconstraint = 0")
	}
	return strings.ReplaceAll(sql, "@CLONES@", "")
}

// asWritten makes the server join tables in the order of the statement. To look for a better one
// in each of the statement's 90 parts takes longer than to run it, and yields a slower plan.
const asWritten = "SET join_collapse_limit = 1; SET from_collapse_limit = 1; "

// aspects runs a statement that yields aspects.
func (s *Session) aspects(ctx context.Context, sql string, yield func(Aspect) error) error {
	err := s.Query(ctx, asWritten+sql+"; RESET join_collapse_limit; RESET from_collapse_limit", func(row []string) error { return yield(Aspect{row[0], row[1], row[2]}) })
	if err != nil {
		return fmt.Errorf("read all definitions: %w", err)
	}
	return nil
}

// WriteAspects returns a function that writes aspects as lines of JSON, and one that ends that.
func WriteAspects(w io.Writer) (yield func(Aspect) error, end func() error) {
	out := bufio.NewWriterSize(w, 64<<10)
	enc := lines(out)
	return func(a Aspect) error { return enc.Encode(a) }, out.Flush
}

// A Difference is an aspect in which two databases differ. If one of them lacks it, its value
// is nil.
type Difference struct{ Want, Got *Aspect }

// String returns the difference, with long texts cut.
func (d Difference) String() string {
	switch {
	case d.Got == nil:
		return "it is missing: " + d.Want.shown()
	case d.Want == nil:
		return "it is not in the backup: " + d.Got.shown()
	}
	return "the backup has " + d.Want.shown() + ", the copy " + d.Got.shown()
}

// optionSecret matches an option of a foreign server whose value must not appear in an error.
var optionSecret = regexp.MustCompile(`(?i)(\w*(?:passw|secret|token|credential|api_?key)\w*=)[^,;]*`)

// shown returns the text without secrets, cut if it is long.
func (a Aspect) shown() string {
	if a.Kind == "server" {
		return shorten(optionSecret.ReplaceAllString(a.Text, "${1}…"))
	}
	return shorten(a.Text)
}

// Object returns the object that differs.
func (d Difference) Object() string {
	a := d.Want
	if a == nil {
		a = d.Got
	}
	return a.Kind + " " + a.Name
}

// OfPublic reports whether the difference is about the schema public itself.
func (d Difference) OfPublic() bool {
	o := d.Object()
	return o == "owner of schema public" || o == "rights to schema public" || o == "comment schema public"
}

func shorten(s string) string {
	const most = 300
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + " …"
	}
	return fmt.Sprintf("%q", s)
}

// CompareAspects compares the session's database with what WriteAspects has written, in an
// edition of AttrCatalogue. It passes each difference to differ, except for aspects for which
// skip returns true.
func (s *Session) CompareAspects(ctx context.Context, want io.Reader, edition, besides string, skip func(Aspect) bool, differ func(Difference) error) error {
	dec := json.NewDecoder(want)
	next := func() (*Aspect, error) {
		for {
			a := &Aspect{}
			err := dec.Decode(a)
			if errors.Is(err, io.EOF) {
				return nil, nil
			}
			if err != nil {
				return nil, fmt.Errorf("read the definitions of the backup: %w", err)
			}
			if !skip(*a) {
				return a, nil
			}
		}
	}
	expected, err := next()
	if err != nil {
		return err
	}
	missing := func(until *Aspect) error {
		for expected != nil && (until == nil || expected.before(*until)) {
			if err := differ(Difference{Want: expected}); err != nil {
				return err
			}
			if expected, err = next(); err != nil {
				return err
			}
		}
		return nil
	}
	err = s.aspects(ctx, s.fingerprintSQL(besides, edition), func(got Aspect) error {
		if skip(got) {
			return nil
		}
		if err := missing(&got); err != nil {
			return err
		}
		if expected == nil || got.before(*expected) {
			return differ(Difference{Got: &got})
		}
		if got.Text != expected.Text {
			if err := differ(Difference{expected, &got}); err != nil {
				return err
			}
		}
		expected, err = next()
		return err
	})
	if err != nil {
		return err
	}
	return missing(nil)
}
