"""Riccati's equation in discrete time: for a fixed linear system, and backwards along a changing one."""

import numpy as np


def steady(A: np.ndarray, B: np.ndarray, Q: np.ndarray, R: np.ndarray) -> tuple[np.ndarray, np.ndarray, int | None]:
    """Gains K and cost to go P of u = K x for x+ = A x + B u, with P = Q + A^T P (A + B K) (`scipy.linalg.solve_discrete_are`).

    Where no feedback is stable, also the coordinate that moves most in what remains; None elsewhere.
    """
    import scipy.linalg

    try:
        P = scipy.linalg.solve_discrete_are(A, B, Q, R)
        K = -np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)
    except np.linalg.LinAlgError:
        return np.zeros_like(B.T), np.full_like(A, np.nan), _left_over(A, B, Q)
    stable = np.isfinite(P).all() and np.abs(np.linalg.eigvals(A + B @ K)).max() < 1
    return K, P, None if stable else _left_over(A, B, Q)


def _left_over(A: np.ndarray, B: np.ndarray, Q: np.ndarray) -> int:
    """The coordinate with the largest part in what does not die out and B does not reach or Q not see, or is nearest to that:
    the least singular vector of [A - root, B] or of [A - root; Q] (Popov, Belevitch and Hautus)."""
    found = []
    for root in (r for r in np.linalg.eigvals(A) if abs(r) > 1 - 1e-9):
        own = A - root * np.eye(len(A))
        for matrix in (np.hstack([own, B]), np.vstack([own, Q]).T):
            u, s, _ = np.linalg.svd(matrix)
            found.append((s[-1], int(np.argmax(np.abs(u[:, -1])))))
    return min(found)[1] if found else int(np.argmax(np.abs(np.diag(A))))


def riccati_along(
    A: np.ndarray, B: np.ndarray, Q: np.ndarray, R: np.ndarray, final: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gains K_t and costs to go P_t of u_t = K_t x_t for x_t+1 = A_t x_t + B_t u_t over T steps:
    P_t = Q + A^T P_t+1 (A + B K_t), P_T = `final`. A is (T, nx, nx); K is (T, nu, nx), P is (T + 1, nx, nx)."""
    K, P = np.zeros((len(A), B.shape[2], A.shape[1])), np.zeros((len(A) + 1, *A.shape[1:]))
    P[-1] = final
    for t in reversed(range(len(A))):
        PB = P[t + 1] @ B[t]
        K[t] = -np.linalg.solve(R + B[t].T @ PB, PB.T @ A[t])
        new = Q + A[t].T @ P[t + 1] @ (A[t] + B[t] @ K[t])
        P[t] = (new + new.T) / 2
    return K, P
