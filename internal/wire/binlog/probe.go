package binlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// Report describes a server's binary log.
type Report struct {
	MariaDB bool
	Version string
	// End is the current end of the log; zero if unknown.
	End Position
	// GTIDs reports whether streams can begin after GTIDs; always true for MariaDB.
	GTIDs bool
	// Format, RowImage, RowMetadata and RowValueOptions are binlog_format, binlog_row_image,
	// binlog_row_metadata and binlog_row_value_options; empty if the server does not have them.
	Format, RowImage, RowMetadata, RowValueOptions string
	// Problems are the reasons why not all changes can be followed. Each is an
	// *UnavailableError.
	Problems []error
	// Warnings say what may be missing.
	Warnings []string
}

// Err joins the problems; nil if there are none.
func (r *Report) Err() error { return errors.Join(r.Problems...) }

// Probe finds out whether an account can follow a server's changes, by reading the settings and
// by requesting the log. It returns an error only if the server could not be queried; problems
// are in the report.
func Probe(ctx context.Context, cfg mywire.ConnectConfig) (*Report, error) {
	server, err := mywire.Connect(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("probe binary log: %w", err)
	}
	defer server.Close()
	vars, err := variables(ctx, server, "log_bin", "binlog_format", "binlog_row_image", "binlog_row_metadata",
		"binlog_row_value_options", "gtid_mode", "mysql56_temporal_format")
	if err != nil {
		return nil, fmt.Errorf("probe binary log: %w", err)
	}
	r := &Report{
		MariaDB: server.IsMariaDB(), Version: server.Greeting.Version,
		GTIDs:  server.IsMariaDB() || isOn(vars["gtid_mode"]),
		Format: vars["binlog_format"], RowImage: vars["binlog_row_image"],
		RowMetadata: vars["binlog_row_metadata"], RowValueOptions: vars["binlog_row_value_options"],
	}
	if !isOn(vars["log_bin"]) {
		r.problem(ErrLogOff, "log_bin is "+vars["log_bin"], hintLogOff)
		return r, nil
	}
	r.settings(vars)
	r.databases(ctx, server)
	if err := r.access(ctx, cfg); err != nil {
		return nil, fmt.Errorf("probe binary log: %w", err)
	}
	return r, nil
}

func (r *Report) problem(err error, detail, hint string) {
	r.Problems = append(r.Problems, &UnavailableError{err, detail, hint})
}

func (r *Report) settings(vars map[string]string) {
	if r.Format != "" && r.Format != "ROW" {
		r.problem(ErrFormat, "binlog_format is "+r.Format, "SET GLOBAL binlog_format = 'ROW', for new sessions")
	}
	if r.RowImage != "" && !strings.HasPrefix(r.RowImage, "FULL") {
		r.problem(ErrRowImage, "binlog_row_image is "+r.RowImage, "SET GLOBAL binlog_row_image = 'FULL', for new sessions")
	}
	if r.RowValueOptions != "" {
		r.Warnings = append(r.Warnings, "binlog_row_value_options is "+r.RowValueOptions+": updates of JSON may be logged as differences")
	}
	if strings.EqualFold(vars["mysql56_temporal_format"], "OFF") {
		r.Warnings = append(r.Warnings, "mysql56_temporal_format is OFF: times with fractions in tables made so cannot be read")
	}
	if r.RowMetadata == "NO_LOG" {
		r.Warnings = append(r.Warnings, "binlog_row_metadata is NO_LOG: the log does not say which integers are unsigned")
	}
}

// databases finds out whether some databases are not logged. An account that may not query the
// end of the log cannot know that, and access reports the missing privilege.
func (r *Report) databases(ctx context.Context, server *mywire.Server) {
	end, err := currentEnd(ctx, server)
	if err != nil {
		return
	}
	if end.only != "" {
		r.Warnings = append(r.Warnings, "binlog_do_db is set: only changes of these databases are logged: "+end.only)
	}
	if end.except != "" {
		r.Warnings = append(r.Warnings, "binlog_ignore_db is set: changes of these databases are not logged: "+end.except)
	}
}

// access requests the log from its end.
func (r *Report) access(ctx context.Context, cfg mywire.ConnectConfig) error {
	s, err := Open(ctx, StreamConfig{Server: cfg, NonBlocking: true})
	if err == nil {
		r.End = s.Start()
		for err == nil {
			_, err = s.Next(ctx)
		}
		_ = s.Close()
	}
	var u *UnavailableError
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case errors.As(err, &u):
		r.Problems = append(r.Problems, u)
		return nil
	}
	return err
}
