package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/cli"
)

// Engine names a database system that a suite can be run on.
type Engine string

// The engines, by the names that the command line has for them.
const (
	PostgreSQL Engine = "postgres"
	MariaDB    Engine = "mariadb"
	MySQL      Engine = "mysql"
	SQLite     Engine = "sqlite"
)

// Title is the engine's own name.
func (e Engine) Title() string {
	return map[Engine]string{PostgreSQL: "PostgreSQL", MariaDB: "MariaDB", MySQL: "MySQL", SQLite: "SQLite"}[e]
}

// family is the engine whose protocol e speaks.
func (e Engine) family() Engine {
	if e == MariaDB {
		return MySQL
	}
	return e
}

// EngineOfDSN returns the one of some engines that a URL is for, "" for none. A
// server of the MySQL family says by itself which of the two it is.
func EngineOfDSN(dsn string, engines []Engine) Engine {
	scheme, rest, _ := strings.Cut(dsn, ":")
	of := map[string]Engine{"postgres": PostgreSQL, "postgresql": PostgreSQL, "mysql": MySQL, "mariadb": MariaDB, "file": SQLite, "sqlite": SQLite}[scheme]
	if of != SQLite && !strings.HasPrefix(rest, "//") {
		return ""
	}
	if slices.Contains(engines, of) {
		return of
	}
	if i := slices.IndexFunc(engines, func(e Engine) bool { return e.family() == of.family() }); i >= 0 {
		return engines[i]
	}
	return ""
}

// Foreign is a server that was there before. Nothing is known of its process.
type Foreign string

func (f Foreign) DSN(string) string        { return string(f) }
func (Foreign) PID() int                   { return 0 }
func (Foreign) Flushes() (uint64, error)   { return 0, errors.ErrUnsupported }
func (Foreign) Stop(context.Context) error { return nil }

// ServerFlags choose a private server of an engine, or one that is there already.
type ServerFlags struct {
	Engine Engine
	DSN    string
	// Engines are those to choose from, the default first; Flag is the name of the
	// flag for the DSN.
	Engines []Engine
	Flag    string

	engine string
	lab    bool
}

// Add defines the flags.
func (s *ServerFlags) Add(f *pflag.FlagSet) {
	f.StringVar(&s.engine, "engine", string(s.Engines[0]), "database system: "+s.names())
	f.BoolVar(&s.lab, "lab", true, "start a private server")
	f.StringVar(&s.DSN, s.Flag, "", "`DSN` of a server and a database to use instead of a private one")
}

// Words gives --engine the words that shells complete.
func (s *ServerFlags) Words(cmd *cobra.Command) {
	cli.Words(cmd, "engine", strings.Split(s.names(), ", ")...)
}

func (s *ServerFlags) names() string {
	var out []string
	for _, e := range s.Engines {
		out = append(out, string(e))
	}
	return strings.Join(out, ", ")
}

// Complete makes the flags agree. changed reports whether a flag was given.
func (s *ServerFlags) Complete(changed func(flag string) bool) error {
	s.Engine = Engine(s.engine)
	if !slices.Contains(s.Engines, s.Engine) {
		return fmt.Errorf("--engine %q: want one of %s", s.engine, s.names())
	}
	switch {
	case s.DSN == "" && !s.lab:
		return fmt.Errorf("--lab=false: name the server with --%s", s.Flag)
	case s.DSN == "":
		return nil
	case changed("lab") && s.lab:
		return fmt.Errorf("--%s contradicts --lab", s.Flag)
	}
	speaks := EngineOfDSN(s.DSN, s.Engines)
	switch {
	case speaks == "" && slices.Contains(s.Engines, SQLite):
		return fmt.Errorf("--%s: want a URL that begins with postgres://, mysql:// or mariadb://, or file:PATH", s.Flag)
	case speaks == "":
		return fmt.Errorf("--%s: want a URL that begins with postgres://, mysql:// or mariadb://", s.Flag)
	case !changed("engine"):
		s.Engine = speaks
	case speaks.family() != s.Engine.family():
		return fmt.Errorf("--%s names a server that --engine %s does not speak to", s.Flag, s.engine)
	}
	return nil
}
