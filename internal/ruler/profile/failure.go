package profile

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/lib/pq"
	"github.com/sijms/go-ora/v2/network"
)

// classify returns the class of an operation's error: the server's error code, or words for
// what happened to the connection. There are few classes, since they are counted.
func classify(err error) string {
	var pg *pgconn.PgError
	var pqErr *pq.Error
	var my *mysql.MySQLError
	var ora *network.OracleError
	switch {
	case errors.As(err, &pg):
		return pg.Code
	case errors.As(err, &pqErr):
		return string(pqErr.Code)
	case errors.As(err, &my):
		if state := string(my.SQLState[:]); my.SQLState[0] != 0 {
			return strconv.Itoa(int(my.Number)) + " (" + state + ")"
		}
		return strconv.Itoa(int(my.Number))
	case errors.As(err, &ora):
		return fmt.Sprintf("ORA-%05d", ora.ErrCode)
	case errors.Is(err, errInjected):
		return "asked for"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), isTimeout(err):
		return "timeout"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case connectionLost(err):
		return "connection lost"
	default:
		return "other: " + shorten(err.Error())
	}
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// connectionLost reports whether an error means that the connection has ended, as opposed to a
// statement that failed on a live one.
func connectionLost(err error) bool {
	for _, e := range []error{
		io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, driver.ErrBadConn, mysql.ErrInvalidConn,
		syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNREFUSED, syscall.ECONNABORTED,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	var op *net.OpError
	return errors.As(err, &op)
}

// shorten makes a class of an error text: short, and without numbers, which would make every
// text different.
func shorten(s string) string {
	const limit = 80
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsDigit(r):
			return '#'
		case unicode.IsControl(r):
			return ' '
		}
		return r
	}, s)
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "..."
	}
	return s
}

// joinCounts formats counts by class, the largest first.
func joinCounts(counts map[string]int64) string {
	classes := slices.Collect(maps.Keys(counts))
	slices.SortFunc(classes, func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b))
	})
	for i, c := range classes {
		classes[i] = fmt.Sprintf("%d x %s", counts[c], c)
	}
	return strings.Join(classes, ", ")
}
