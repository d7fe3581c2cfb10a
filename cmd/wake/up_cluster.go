package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// startServers starts as many servers as there are to be replicas, on the
// loopback interface, that sync what they store. End stops them.
func startServers(ctx context.Context, dir string, replicas int, log *slog.Logger) (url string, end func(), err error) {
	if replicas == 1 {
		s, err := startServer(ctx, embeddedConfig{Dir: filepath.Join(dir, "nats"), Listen: "127.0.0.1"}, log)
		if err != nil {
			return "", nil, err
		}
		return s.url, s.stop, nil
	}
	if replicas != 3 {
		return "", nil, usageError("or give --nats-url", "--replicas: an embedded cluster has 3 servers, or 1")
	}
	return startCluster(ctx, dir, replicas, log)
}

func startCluster(ctx context.Context, dir string, size int, log *slog.Logger) (string, func(), error) {
	ports, err := freePorts(size)
	if err != nil {
		return "", nil, err
	}
	var routes, urls []string
	for _, port := range ports {
		routes = append(routes, "nats://"+net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
	var servers []*server.Server
	end := func() {
		for _, s := range servers {
			s.Shutdown()
		}
		for _, s := range servers {
			s.WaitForShutdown()
		}
	}
	for i, port := range ports {
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprint("wake-", i), Host: "127.0.0.1", Port: server.RANDOM_PORT,
			JetStream: true, StoreDir: filepath.Join(dir, fmt.Sprint("nats-", i)), SyncAlways: true,
			NoSigs: true, DisableJetStreamBanner: true,
			Cluster: server.ClusterOpts{Name: "wake", Host: "127.0.0.1", Port: port},
			Routes:  server.RoutesFromStr(strings.Join(routes, ",")),
		})
		if err != nil {
			end()
			return "", nil, fmt.Errorf("embedded cluster: %w", err)
		}
		s.Start()
		servers = append(servers, s)
	}
	for _, s := range servers {
		if !s.ReadyForConnections(serverStart) {
			end()
			return "", nil, fmt.Errorf("embedded cluster: not ready after %s", serverStart)
		}
		urls = append(urls, s.ClientURL())
	}
	if err := awaitLeader(ctx, servers); err != nil {
		end()
		return "", nil, err
	}
	for _, s := range servers { // not before: routes to servers that don't listen yet are errors
		s.SetLoggerV2(&serverLogger{log: log, fatal: make(chan string, 1)}, false, false, false)
	}
	return strings.Join(urls, ","), end, nil
}

// awaitLeader waits until the servers know their leader: a request before that
// gets no answer.
func awaitLeader(ctx context.Context, servers []*server.Server) error {
	ctx, cancel := context.WithTimeout(ctx, serverStart)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		led := slices.ContainsFunc(servers, (*server.Server).JetStreamIsLeader)
		if led && !slices.ContainsFunc(servers, func(s *server.Server) bool { return !s.JetStreamIsCurrent() }) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("embedded cluster: no leader: %w", ctx.Err())
		}
	}
}

// freePorts returns ports that are free at the moment: routes have to be known
// before the servers run.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() //nolint:errcheck // all at once, so that no port comes twice
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
