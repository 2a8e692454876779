package backupbench

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
	backupdata "github.com/weirdb/weir/internal/ruler/bench/backup/data"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// Engines lists the engines that the benchmark supports.
func Engines() []suite.Engine { return []suite.Engine{suite.PostgreSQL, suite.MariaDB} }

// engine is what differs between database systems.
type engine interface {
	// info describes the server. durability is the durability of a commit, "" if unknown.
	info() measure.Server
	durability() string
	pid() int // 0 if unknown
	place(database string) place
	// recreate makes an empty database, after dropping an old one of that name; drop succeeds
	// if there is none.
	recreate(ctx context.Context, database string) error
	drop(ctx context.Context, database string) error
	// load fills an empty database.
	load(ctx context.Context, database string, tables []*backupdata.Table, seed uint64) error
	// settle lets the server finish deferred work before a round.
	settle(ctx context.Context) error
	// sums describes the content of a database.
	sums(ctx context.Context, database string) (sums, error)
	// ways lists the tools to compare, including weir, and those that are missing. The first
	// one is the baseline.
	ways(ctx context.Context, o *Options, jobs int) (ways []way, missing []string)
	close(ctx context.Context) error
}

// base is the common part of the engines.
type base struct {
	dsn    string
	lab    suite.Server // nil if it is not private
	server measure.Server
}

func (b *base) info() measure.Server { return b.server }

func (b *base) durability() string {
	if b.lab == nil {
		return ""
	}
	return lab.Prod.String()
}

func (b *base) pid() int {
	if b.lab == nil {
		return 0
	}
	return b.lab.PID()
}

// sums describes the content of a database: for each table its rows with a checksum that does
// not depend on their order, and how many indexes and constraints of each kind there are.
type sums struct {
	tables  map[string]string
	objects string
	rows    int64
}

// differs says how a copy differs from its source; "" if it does not.
func (s sums) differs(copied sums) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(s.tables)) {
		switch got, ok := copied.tables[name]; {
		case !ok:
			out = append(out, fmt.Sprintf("table %s is missing", name))
		case got != s.tables[name]:
			out = append(out, fmt.Sprintf("table %s has %s, not %s", name, got, s.tables[name]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(copied.tables)) {
		if _, ok := s.tables[name]; !ok {
			out = append(out, fmt.Sprintf("table %s is unexpected", name))
		}
	}
	if s.objects != copied.objects {
		out = append(out, fmt.Sprintf("it has %s, not %s", copied.objects, s.objects))
	}
	const most = 5
	if len(out) > most {
		out = append(out[:most], fmt.Sprintf("and %d more", len(out)-most))
	}
	return strings.Join(out, "; ")
}

// withoutPassword removes the password from a URL, and adds the database.
func withoutPassword(dsn, database string) (place, string, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Host == "" {
		return place{}, "", fmt.Errorf("read DSN: want a URL with a host, such as postgres://user@host:5432/")
	}
	password, _ := u.User.Password()
	p := place{database: database, host: u.Hostname(), port: u.Port(), user: u.User.Username()}
	u.User = url.User(p.user)
	u.Path = "/" + database
	p.dsn = u.String()
	return p, password, nil
}

// addr is the host and port of a place.
func (p place) addr() string { return net.JoinHostPort(p.host, p.port) }
