// Package notice reports a backup: by shell commands before and after it, a webhook, and
// metrics in a file for node_exporter.
package notice

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/version"
)

// hookPatience limits how long a webhook may take to answer, and how long a hook may take to
// end after it was asked to.
const hookPatience = 10 * time.Second

// Hooks are what is run and notified before and after a backup. The zero value does nothing.
type Hooks struct {
	Before      string // shell command to run first; if it fails, nothing is backed up
	After       string // shell command to run at the end, with WEIR_BACKUP_* in its environment
	Webhook     string // URL to which the outcome is posted as JSON
	MetricsFile string // for node_exporter's textfile collector, written atomically
}

// Validate checks the webhook's URL. Its error names the flag.
func (h *Hooks) Validate() error {
	if h.Webhook == "" {
		return nil
	}
	u, err := url.Parse(h.Webhook)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("--webhook: want an http or https URL")
	}
	return nil
}

// Outcome is what hooks, webhooks, metrics and --json report about a backup.
type Outcome struct {
	ID       string        `json:"id"`              // the name of the backup
	Label    string        `json:"label"`           // groups backups of one source
	Location string        `json:"location"`        // where the archive is
	OK       bool          `json:"ok"`              // the backup is complete
	Error    string        `json:"error,omitempty"` // why it is not
	Started  time.Time     `json:"started"`         // when it began
	Elapsed  time.Duration `json:"elapsed_ns"`      // from start to end

	Tables      int      `json:"tables"`             // number of tables
	Rows        int64    `json:"rows"`               // number of rows
	PlainBytes  int64    `json:"plain_bytes"`        // before compression and encryption
	StoredBytes int64    `json:"stored_bytes"`       // as stored
	Warnings    []string `json:"warnings,omitempty"` // what the backup could not do exactly

	// WorkersPeak is the largest number of workers that read rows of one database at the same
	// time.
	WorkersPeak   int `json:"workers_peak,omitempty"`
	JobsCompleted int `json:"jobs_completed,omitempty"` // jobs that all workers completed
}

// environment returns the outcome as environment variables for a hook.
func (o *Outcome) environment() []string {
	status := "failed"
	if o.OK {
		status = "ok"
	}
	return []string{
		"WEIR_BACKUP_ID=" + o.ID, "WEIR_BACKUP_LABEL=" + o.Label, "WEIR_BACKUP_LOCATION=" + o.Location,
		"WEIR_BACKUP_STATUS=" + status, "WEIR_BACKUP_ERROR=" + o.Error,
		"WEIR_BACKUP_SECONDS=" + strconv.FormatFloat(o.Elapsed.Seconds(), 'f', 3, 64),
		"WEIR_BACKUP_BYTES=" + strconv.FormatInt(o.StoredBytes, 10),
	}
}

// Start runs the Before command.
func (h *Hooks) Start(ctx context.Context, o *Outcome, stderr io.Writer) error {
	if h.Before == "" {
		return nil
	}
	if err := runHook(ctx, h.Before, []string{"WEIR_BACKUP_LABEL=" + o.Label, "WEIR_BACKUP_LOCATION=" + o.Location}, stderr); err != nil {
		return fmt.Errorf("--hook-before: %w; nothing was backed up", err)
	}
	return nil
}

// Finish reports the outcome. If the After command or the metrics fail, the run fails; a
// webhook that fails is only a warning.
func (h *Hooks) Finish(ctx context.Context, o *Outcome, stderr io.Writer) error {
	ctx = context.WithoutCancel(ctx) // an interrupted backup is reported, too
	var errs []error
	state := "the backup failed, too"
	if o.OK {
		state = "the backup is complete all the same"
	}
	if h.MetricsFile != "" {
		if err := writeMetrics(h.MetricsFile, o); err != nil {
			errs = append(errs, fmt.Errorf("--metrics-file: %w; %s", err, state))
		}
	}
	if h.Webhook != "" {
		if err := postOutcome(ctx, h.Webhook, o); err != nil {
			fmt.Fprintf(stderr, "warning: --webhook: %v\n", err)
		}
	}
	if h.After != "" {
		if err := runHook(ctx, h.After, o.environment(), stderr); err != nil {
			errs = append(errs, fmt.Errorf("--hook-after: %w; %s", err, state))
		}
	}
	return errors.Join(errs...)
}

// runHook runs a shell command. Its output goes to standard error, because standard output may
// be the backup itself.
func runHook(ctx context.Context, command string, env []string, stderr io.Writer) error {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = stderr, stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = hookPatience
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%q: %w", command, err)
	}
	return nil
}

// postOutcome posts the outcome to the webhook. Errors do not contain the URL, whose path or
// query is often a secret.
func postOutcome(ctx context.Context, to string, o *Outcome) error {
	ctx, cancel := context.WithTimeout(ctx, hookPatience)
	defer cancel()
	body, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode outcome: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return errors.New("the URL makes no request")
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "weir/"+version.Number)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		if u := (*url.Error)(nil); errors.As(err, &u) {
			err = u.Err
		}
		return fmt.Errorf("post to %s: %w", request.URL.Host, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("post to %s: it answered %s", request.URL.Host, answer.Status)
	}
	return nil
}
