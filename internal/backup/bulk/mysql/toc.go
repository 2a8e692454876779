package mysql

import (
	"path"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/backup/archive"
)

// A Kind is a kind of object in a table of contents.
type Kind string

// The kinds, in the order in which a restore creates them.
const (
	KindDatabase  Kind = "database"
	KindSequence  Kind = "sequence"
	KindTable     Kind = "table"
	KindLibrary   Kind = "library" // of code that routines use; MySQL has them since 9.2
	KindFunction  Kind = "function"
	KindProcedure Kind = "procedure"
	KindPackage   Kind = "package"
	KindBody      Kind = "package body"
	KindView      Kind = "view"
	KindTrigger   Kind = "trigger"
	KindEvent     Kind = "event"
)

// An Entry is the definition of one object.
type Entry struct {
	Kind  Kind   `json:"kind"`
	Name  string `json:"name"`
	Table string `json:"table,omitempty"` // of a trigger

	// Create is the statement that the server prints. It qualifies names with the database only
	// if the definition of the object did.
	Create string `json:"create"`

	// Mode, Client, Collation and Zone are the settings with which a session must create the
	// object, so that it means the same: sql_mode, character_set_client, collation_connection
	// and time_zone. Empty if the kind has none.
	Mode      *string `json:"sql_mode,omitempty"`
	Client    string  `json:"character_set_client,omitempty"`
	Collation string  `json:"collation_connection,omitempty"`
	Zone      string  `json:"time_zone,omitempty"`

	// Broken says that the server cannot use the object: a view of a table that does not exist,
	// for example. Its definition is archived anyway.
	Broken bool `json:"broken,omitempty"`

	// Value is the next value of a sequence.
	Value string `json:"value,omitempty"`
}

// String returns the kind and the name: "TABLE orders".
func (e *Entry) String() string { return strings.ToUpper(string(e.Kind)) + " " + e.Name }

// Options returns the options of a database after its character set, such as its comment, in
// the syntax of CREATE DATABASE.
func (e *Entry) Options() string {
	rest, ok := strings.CutPrefix(e.Create, "CREATE DATABASE "+Ident(e.Name))
	if !ok {
		return ""
	}
	if charset, options, ok := strings.Cut(rest, "*/"); ok && strings.HasPrefix(charset, " /*!40100 ") {
		return options
	}
	return rest
}

// Renamed returns the definition of a database under another name.
func (e *Entry) Renamed(to string) string {
	const word = "CREATE DATABASE "
	return strings.Replace(e.Create, word+Ident(e.Name), word+Ident(to), 1)
}

// Drop returns the statement that drops the object.
func (e *Entry) Drop(ifExists bool) string {
	sql := "DROP " + strings.ToUpper(string(e.Kind)) + " "
	if ifExists {
		sql += "IF EXISTS "
	}
	return sql + Ident(e.Name)
}

// TOC is the table of contents of a database: all its objects, each kind after those that it
// may depend on, views after the views that they read.
type TOC struct {
	Entries []Entry `json:"entries"`
}

// Of returns the entries of the given kinds.
func (t *TOC) Of(kinds ...Kind) []*Entry {
	var out []*Entry
	for _, k := range kinds {
		for i := range t.Entries {
			if t.Entries[i].Kind == k {
				out = append(out, &t.Entries[i])
			}
		}
	}
	return out
}

// Setting returns the statement that prepares a session to create the entry, or "". Settings
// without a value in the entry are the session's own.
func (e *Entry) Setting() string {
	var parts []string
	if e.Mode != nil {
		parts = append(parts, "sql_mode = "+Literal(*e.Mode))
	}
	if e.Client != "" {
		parts = append(parts, "character_set_client = "+e.client())
	}
	if e.Collation != "" {
		parts = append(parts, "collation_connection = "+e.Collation)
	}
	if e.Zone != "" {
		parts = append(parts, "time_zone = "+Literal(e.Zone))
	}
	if len(parts) == 0 {
		return ""
	}
	return "SET " + strings.Join(parts, ", ")
}

// client returns the character set of the client that creates the entry. Definitions are in
// UTF-8, whatever the character set of the original client.
func (e *Entry) client() string {
	if !strings.HasPrefix(e.Client, "utf8") && !ascii(e.Create) {
		return "utf8mb4"
	}
	return e.Client
}

func ascii(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > 0x7e })
}

// Unset is the statement that restores a session's own settings.
const Unset = "SET NAMES utf8mb4, character_set_results = binary, sql_mode = '" + Mode + "', time_zone = '+00:00'"

// SequencesPath returns the path of the chunk with the values of a database's sequences.
func SequencesPath(database string) string {
	return path.Dir(path.Dir(archive.SchemaPath(database, "x"))) + "/state/sequences.sql"
}

// GlobalsPath is the path of the chunk with accounts and grants.
const GlobalsPath = "globals.sql"

// Account is a user or role: the statement that creates it, and its grants. PUBLIC has only
// grants. A server for linked tables and a function from a shared library are stored like
// accounts, with names that begin with ServerMark and LibraryMark.
type Account struct {
	Name       string // 'user'@'host', quoted
	Statements []string
}

// Prefixes of the names of entries that are not accounts.
const (
	Public      = "PUBLIC"
	ServerMark  = "server "
	LibraryMark = "function "
)

// Title returns the name for messages.
func (a Account) Title() string {
	if strings.HasPrefix(a.Name, ServerMark) || strings.HasPrefix(a.Name, LibraryMark) {
		return a.Name
	}
	return "account " + a.Name
}

// Globals are the accounts of a server.
type Globals struct{ Accounts []Account }

const (
	accountMark = "-- account "
	linesMark   = "-- lines of the next statement: "
)

// String returns a script: a comment before the statements of each account, and one statement
// per line. Before a statement with line feeds in a name or a text, a comment has the number of
// its lines.
func (g Globals) String() string {
	var b strings.Builder
	for _, a := range g.Accounts {
		b.WriteString(accountMark + strings.ReplaceAll(a.Name, "\n", " ") + "\n")
		for _, s := range a.Statements {
			if n := strings.Count(s, "\n"); n > 0 {
				b.WriteString(linesMark + strconv.Itoa(n+1) + "\n")
			}
			b.WriteString(s + ";\n")
		}
	}
	return b.String()
}

// ParseGlobals parses the output of Globals.String.
func ParseGlobals(text string) Globals {
	var g Globals
	lines := strings.Split(text, "\n")
	for len(lines) > 0 {
		line, count := lines[0], 1
		if name, ok := strings.CutPrefix(line, accountMark); ok {
			g.Accounts = append(g.Accounts, Account{Name: name})
			lines = lines[1:]
			continue
		}
		if number, ok := strings.CutPrefix(line, linesMark); ok {
			n, err := strconv.Atoi(number)
			if err == nil && n > 0 && n < len(lines) {
				lines, count = lines[1:], n
			}
		}
		statement := strings.TrimSuffix(strings.Join(lines[:count], "\n"), ";")
		lines = lines[count:]
		if n := len(g.Accounts); n > 0 && statement != "" {
			a := &g.Accounts[n-1]
			a.Statements = append(a.Statements, statement)
		}
	}
	return g
}
