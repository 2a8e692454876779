package profile

import (
	"context"
	"errors"
	"fmt"

	goora "github.com/sijms/go-ora/v2"

	"github.com/weirdb/weir/internal/measure"
)

// checkOracle checks a URL oracle://user:password@host:port/service. The driver parses it only
// when it connects.
func checkOracle(dsn string) error {
	u, err := parseURL(dsn)
	switch {
	case err != nil:
		return err
	case u.Hostname() == "":
		return errors.New("no host")
	case u.Path == "" || u.Path == "/":
		return errors.New("no service name after the host, as in oracle://user@host:1521/FREEPDB1")
	}
	return nil
}

// oracleConnector opens connections of database/sql over go-ora.
//
// It is built, and its error paths are tested. It has not been run against a live server: see
// Verification.
func oracleConnector(dsn string, c poolConfig) (sqlConnector, error) {
	connector, ok := goora.NewConnector(dsn).(*goora.OracleConnector)
	if !ok {
		return sqlConnector{}, fmt.Errorf("go-ora: its connector does not accept a dialer")
	}
	connector.Dialer(c.dial)
	return sqlConnector{Connector: connector, config: c, prepare: true}, nil
}

func (t *Target) lookOracle(ctx context.Context) error {
	t.server = measure.Server{Name: "Oracle", Version: "unknown"}
	var banner string
	if err := t.admin.QueryRowContext(ctx, "SELECT banner FROM v$version WHERE rownum = 1").Scan(&banner); err == nil {
		t.server.Version = banner
	}
	return nil
}
