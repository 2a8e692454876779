package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A member is one host of a cluster that Patroni runs.
type member struct {
	host   string // host:port
	leader bool
}

// maxCluster bounds Patroni's answer.
const maxCluster = 1 << 20

// askPatroni returns the members of the cluster. All URLs are asked at once, since one of
// them may be on the machine that has just failed, and the first answer counts. Its form is
// that of GET /cluster:
// https://patroni.readthedocs.io/en/latest/rest_api.html#cluster-status-endpoints
func askPatroni(ctx context.Context, urls []string, timeout time.Duration) ([]member, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	type answer struct {
		members []member
		err     error
	}
	answers := make(chan answer, len(urls))
	for _, u := range urls {
		go func() {
			members, err := askCluster(ctx, strings.TrimSuffix(u, "/")+"/cluster")
			answers <- answer{members, err}
		}()
	}
	var errs []error
	for range urls {
		a := <-answers
		if a.err == nil {
			return a.members, nil
		}
		errs = append(errs, a.err)
	}
	return nil, errors.Join(errs...)
}

func askCluster(ctx context.Context, url string) ([]member, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxCluster))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, res.Status)
	}
	members, err := parseCluster(body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	return members, nil
}

// parseCluster parses the answer. Members without an address, or that do not run,
// are left out.
func parseCluster(body []byte) ([]member, error) {
	var cluster struct {
		Members []struct {
			Role  string `json:"role"`
			State string `json:"state"`
			Host  string `json:"host"`
			Port  int    `json:"port"`
		} `json:"members"`
	}
	if err := json.Unmarshal(body, &cluster); err != nil {
		return nil, fmt.Errorf("the members of the cluster: %w", err)
	}
	var members []member
	for _, m := range cluster.Members {
		if m.Host == "" || m.Port < 1 || m.Port > 65535 || (m.State != "running" && m.State != "streaming") {
			continue
		}
		// A standby leader takes no writes: it follows another cluster.
		leader := m.Role == "leader" || m.Role == "master" || m.Role == "primary"
		members = append(members, member{net.JoinHostPort(m.Host, strconv.Itoa(m.Port)), leader})
	}
	if len(members) == 0 {
		return nil, errors.New("it names no member that runs")
	}
	return members, nil
}
