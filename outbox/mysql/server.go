package mysql

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// server describes a server.
type server struct {
	place    string // see placeText
	version  string // VERSION()
	mariadb  bool
	database string // that the tables are in
	process  bool   // the account sees all sessions and transactions
}

// title returns product and version.
func (v *server) title() string {
	if v.mariadb {
		number, _, _ := strings.Cut(v.version, "-")
		return "MariaDB " + number
	}
	return "MySQL " + v.version
}

// describeServer describes the server of the sessions.
func (s *Store) describeServer(ctx context.Context) (v *server, err error) {
	err = s.with(ctx, func(c *session) error {
		v, err = s.serverOf(ctx, c)
		return err
	})
	if err != nil {
		return nil, s.fail("look at the server of", err)
	}
	return v, nil
}

// serverOf describes the server of a session: an address may lead to a MariaDB now and to a MySQL
// later. It asks each server once, until Lead asks again.
func (s *Store) serverOf(ctx context.Context, c *session) (*server, error) {
	s.describing.Lock()
	known := s.server
	s.describing.Unlock()
	if known != nil && known.place == c.place {
		return known, nil
	}
	return s.askServer(ctx, c)
}

// askServer is serverOf that always asks. It returns an error if the server is too old.
func (s *Store) askServer(ctx context.Context, c *session) (*server, error) {
	v := &server{place: c.place}
	var database sql.NullString
	if err := c.QueryRowContext(ctx, "SELECT VERSION(), DATABASE()").Scan(&v.version, &database); err != nil {
		return nil, err
	}
	v.mariadb = strings.Contains(v.version, "MariaDB")
	v.database = cmp.Or(s.schema, database.String)
	switch err := c.exec(ctx, "SELECT COUNT(*) FROM information_schema.INNODB_TRX"); {
	case err == nil, isError(err, errConvert):
		v.process = true
	case !isError(err, errAccessDenied):
		return nil, err
	}
	if err := v.check(); err != nil {
		return nil, err
	}
	s.describing.Lock()
	s.server = v
	s.describing.Unlock()
	return v, nil
}

// check returns an error for servers without JSON_TABLE, default expressions or SKIP LOCKED.
func (v *server) check() error {
	if v.database == "" {
		return errors.New("no database: name one in the DSN, or the table as schema.name")
	}
	var major, minor int
	if _, err := fmt.Sscanf(v.version, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("the server's version %q is not understood: %w", v.version, err)
	}
	if v.mariadb && (major < 10 || major == 10 && minor < 11) || major < 8 {
		return fmt.Errorf("%s is too old: MySQL 8.0 or MariaDB 10.11 is needed", v.title())
	}
	return nil
}

// lockName returns the name of an advisory lock. Names are global to the server and have at most
// 64 characters.
func (v *server) lockName(s *Store, what string) string {
	sum := sha256.Sum256([]byte(v.database + "\x00" + s.base))
	return "weir:" + hex.EncodeToString(sum[:16]) + ":" + what
}

func (v *server) shardLock(s *Store, shard int) string {
	return v.lockName(s, strconv.Itoa(shard))
}
